"""The networks of LeRobot's policies as modules from normalized observations to a chunk of actions."""

from __future__ import annotations

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
