"""The networks of LeRobot's policies as modules from normalized observations to a chunk of actions."""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn


class ActNetwork(nn.Module):
    """ACT without the encoder that only training needs. Positions and the latent token, which never change, are
    buffers.

    Args:
        model: the policy's ``model``.
        state, environment: whether it takes these.
        images: the shapes of its images, [channels, height, width].
    """

    latent: torch.Tensor
    places: torch.Tensor

    def __init__(
        self, model: Any, *, state: bool, environment: bool, images: Sequence[Sequence[int]]
    ) -> None:
        super().__init__()
        self.state = model.encoder_robot_state_input_proj if state else None
        self.environment = model.encoder_env_state_input_proj if environment else None
        self.encoder, self.decoder, self.head = model.encoder, model.decoder, model.action_head
        self.backbone = model.backbone if images else None
        self.project = model.encoder_img_feat_input_proj if images else None
        places: list[torch.Tensor] = [model.encoder_1d_feature_pos_embed.weight]
        with torch.no_grad():
            for shape in images:
                features = model.backbone(torch.zeros(1, *shape))["feature_map"]
                places.append(model.encoder_cam_feat_pos_embed(features)[0].flatten(1).T)
            self.register_buffer("latent", model.encoder_latent_input_proj.bias.clone())
            self.register_buffer("places", torch.cat(places).unsqueeze(1))
        self.queries = model.decoder_pos_embed

    def forward(
        self, numbers: Sequence[torch.Tensor], images: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        """Actions [batch, actions, size] of states and environments, and of images [batch, 3, height, width]."""
        batch = (*numbers, *images)[0].shape[0]
        layers: list[Any] = [layer for layer in (self.state, self.environment) if layer is not None]
        tokens = [self.latent.expand(1, batch, -1)]
        tokens += [layer(item).unsqueeze(0) for layer, item in zip(layers, numbers, strict=True)]
        for image in images:
            assert self.backbone is not None and self.project is not None
            features = self.project(self.backbone(image)["feature_map"])
            tokens.append(features.flatten(2).permute(2, 0, 1))
        memory = self.encoder(torch.cat(tokens), pos_embed=self.places)
        queries = self.queries.weight.unsqueeze(1)
        start = torch.zeros_like(queries).expand(-1, batch, -1)
        made = self.decoder(start, memory, encoder_pos_embed=self.places, decoder_pos_embed=queries)
        actions: torch.Tensor = self.head(made.transpose(0, 1))
        return actions


class DiffusionNetwork(nn.Module):
    """A diffusion policy with all of its denoising steps.

    Args:
        model: the policy's ``diffusion``.
        steps: the arithmetic of each step.
        first, count: the actions of the horizon that are given.
    """

    def __init__(self, model: Any, steps: Sequence[Any], first: int, count: int) -> None:
        super().__init__()
        encoder: Any = getattr(model, "rgb_encoder", None)
        # One for all cameras, or one for each.
        one_each = isinstance(encoder, nn.ModuleList)
        self.encoders = encoder if one_each else nn.ModuleList([encoder] if encoder else [])
        self.unet = model.unet
        self.steps = tuple(steps)
        self.first, self.count = first, count

    def forward(
        self, numbers: Sequence[torch.Tensor], images: Sequence[torch.Tensor], noise: torch.Tensor
    ) -> torch.Tensor:
        """Actions [batch, actions, size].

        Args:
            numbers: states and environments, [batch, observations, size].
            images: images, [batch, observations, 3, height, width].
            noise: random numbers, [batch, draws, horizon, size].
        """
        parts = [numbers[0]]
        for index, image in enumerate(images):
            encoder = self.encoders[index % len(self.encoders)]
            features = encoder(image.flatten(0, 1))
            parts.append(features.reshape(image.shape[0], image.shape[1], features.shape[-1]))
        condition = torch.cat([*parts, *numbers[1:]], -1).flatten(1)
        sample, draws = noise[:, 0], iter(range(1, noise.shape[1]))
        for step in self.steps:
            times = torch.full((noise.shape[0],), step.time, dtype=torch.int64)
            made = self.unet(sample, times, global_cond=condition)
            drawn = noise[:, next(draws)] if step.draws else None
            sample = step.apply(sample, made, drawn)
        return sample[:, self.first : self.first + self.count]


class SmolVlaNetwork(nn.Module):
    """SmolVLA: a model of images, words and joints keeps their keys and values, over which its expert turns noise into
    actions in steps of equal size. The times of the steps, which never change, are a buffer.

    Args:
        policy: the policy, which stays as it is.
        images: names of its images.
        state: name of its joints.
        size: numbers of an action.
    """

    times: torch.Tensor

    def __init__(self, policy: Any, images: Sequence[str], state: str, size: int) -> None:
        super().__init__()
        self._policy = (policy,)  # no module of this one: it has further weights
        self._images, self._state, self._size = images, state, size
        self.model = model = _without_unused(policy.model)
        self._functions = functions = sys.modules[type(model).__module__]
        config, width = policy.config, model.vlm_with_expert.expert_hidden_size
        self._step = -1.0 / config.num_steps
        steps = [1.0 + step * self._step for step in range(config.num_steps)]
        times = functions.create_sinusoidal_pos_embedding(
            torch.tensor(steps, dtype=torch.float32),
            width,
            config.min_period,
            config.max_period,
            device=torch.device("cpu"),
        )
        self.register_buffer("times", times.float())

    def forward(
        self,
        numbers: Sequence[torch.Tensor],
        images: Sequence[torch.Tensor],
        tokens: torch.Tensor,
        seen: torch.Tensor,
        noise: torch.Tensor,
    ) -> torch.Tensor:
        """Actions [batch, actions, size].

        Args:
            numbers: states, [batch, size].
            images: images from 0 to 1, [batch, 3, height, width].
            tokens: the task, int64 [batch, tokens].
            seen: mask of its tokens, bool [batch, tokens].
            noise: random numbers, [batch, 1, actions, numbers].
        """
        (policy,), model, masks_of = self._policy, self.model, self._functions.make_att_2d_masks
        cameras, present = policy.prepare_images(dict(zip(self._images, images, strict=True)))
        state = policy.prepare_state({self._state: numbers[0]})
        prefix, filled, order = model.embed_prefix(cameras, present, tokens, seen, state=state)
        _, caches = model.vlm_with_expert(
            attention_mask=masks_of(filled, order),
            position_ids=torch.cumsum(filled, dim=1) - 1,
            inputs_embeds=[prefix, None],
            use_cache=True,
            fill_kv_cache=True,
        )
        sample = noise[:, 0]
        batch, count = sample.shape[:2]
        ones = torch.ones(batch, count, dtype=torch.bool)
        before = filled[:, None, :].expand(batch, count, filled.shape[1])
        mask = torch.cat([before, masks_of(ones, ones)], dim=2)
        places = filled.sum(dim=-1)[:, None] + torch.arange(count)
        for time in self.times:
            actions = model.action_in_proj(sample)
            timed = torch.cat([actions, time.expand_as(actions)], dim=2)
            timed = nn.functional.silu(model.action_time_mlp_in(timed))
            (_, made), _ = model.vlm_with_expert(
                attention_mask=mask,
                position_ids=places,
                past_key_values=caches,
                inputs_embeds=[None, model.action_time_mlp_out(timed)],
                use_cache=True,
                fill_kv_cache=False,
            )
            sample = sample + self._step * model.action_out_proj(made)
        return sample[:, :, : self._size]


class _Patches(nn.Module):
    """An image's patches with their positions, which never change for images of one size.

    LeRobot's model counts the positions of each image by itself, whose number has to be fixed for that.
    """

    places: torch.Tensor

    def __init__(self, embeddings: Any, height: int, width: int) -> None:
        super().__init__()
        self.patch_embedding = embeddings.patch_embedding
        found: list[torch.Tensor] = []
        hook = embeddings.position_embedding.register_forward_hook(
            lambda module, inputs, output: found.append(output)
        )
        edge = embeddings.patch_size
        embeddings(
            torch.zeros(1, self.patch_embedding.in_channels, height, width),
            torch.ones(1, height // edge, width // edge, dtype=torch.bool),
        )
        hook.remove()
        self.register_buffer("places", found[0])

    def forward(
        self, pixel_values: torch.Tensor, patch_attention_mask: torch.Tensor
    ) -> torch.Tensor:
        patches: torch.Tensor = self.patch_embedding(pixel_values)
        return patches.flatten(2).transpose(1, 2) + self.places


def _without_unused(model: Any) -> Any:
    """SmolVLA's model over the same weights, without those that choose words."""
    both = model.vlm_with_expert
    size: Any = model.config.resize_imgs_with_padding
    embeddings = both.get_vlm_model().vision_model.embeddings
    memo: dict[int, Any] = {id(t): t for t in [*model.parameters(), *model.buffers()]}
    memo[id(both.processor)] = None
    memo[id(both.vlm.lm_head)] = nn.Identity()
    memo[id(embeddings)] = _Patches(embeddings, size[1], size[0])
    return copy.deepcopy(model, memo)
