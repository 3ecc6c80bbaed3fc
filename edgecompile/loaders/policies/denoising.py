"""The arithmetic of a diffusion policy's denoising steps, with the numbers of its scheduler's table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from edgecompile.errors import ModelError

#: Every step is a copy of the network in the program.
MAX_STEPS = 32


@dataclass(frozen=True)
class DenoisingStep:
    """A step to ``clean * x + noisy * sample + direction * e + spread * fresh noise``, where x are the clean actions and
    e the noise that the network finds in the sample.

    Attributes:
        time: the time that the network is told.
        signal, noise: the shares of signal and noise in the sample: square roots of alpha and of 1 - alpha.
        guesses_noise: whether the network gives the noise; else the clean actions.
        limit: the largest magnitude of clean actions; None: any.
        clean, noisy, direction: factors of the clean actions, the sample and the noise in it.
        spread: factor of fresh noise; 0: none is drawn.
    """

    time: int
    signal: float
    noise: float
    guesses_noise: bool
    limit: float | None
    clean: float
    noisy: float
    direction: float
    spread: float

    @property
    def draws(self) -> bool:
        """Whether fresh noise is added."""
        return self.spread > 0

    def apply(
        self, sample: torch.Tensor, made: torch.Tensor, drawn: torch.Tensor | None
    ) -> torch.Tensor:
        """The sample of the next step, all [batch, horizon, size].

        Args:
            sample: the sample so far.
            made: the output of the network.
            drawn: fresh noise, where the step draws some.
        """
        clean = (sample - self.noise * made) / self.signal if self.guesses_noise else made
        direction = made if self.guesses_noise else (sample - self.signal * made) / self.noise
        if self.limit is not None:
            clean = clean.clamp(-self.limit, self.limit)
        result = self.clean * clean
        if self.noisy:
            result = result + self.noisy * sample
        if self.direction:
            result = result + self.direction * direction
        return result if drawn is None else result + self.spread * drawn


def denoising_steps(scheduler: Any, count: int) -> tuple[DenoisingStep, ...]:
    """The steps of a scheduler of diffusers.

    Args:
        scheduler: a DDPMScheduler or a DDIMScheduler.
        count: the number of steps.

    Raises:
        ModelError: there are too many of them, or the scheduler has settings that aren't known.
    """
    config, name = scheduler.config, type(scheduler).__name__
    if count > MAX_STEPS:
        raise ModelError(
            f"the policy takes {count} denoising steps, at most {MAX_STEPS} are compiled",
            hint='write fewer into its config.json, such as "noise_scheduler_type": "DDIM" with '
            '"num_inference_steps": 10',
        )
    known: dict[str, tuple[object, ...]] = {
        "thresholding": (False,),
        "prediction_type": ("epsilon", "sample"),
        "timestep_spacing": ("leading", "linspace", "trailing"),
    }
    if name == "DDPMScheduler":
        known["variance_type"] = ("fixed_small",)
    odd = [key for key, values in known.items() if config[key] not in values]
    if odd or name not in ("DDPMScheduler", "DDIMScheduler"):
        raise ModelError(f"the policy's {name} has settings that aren't known: {', '.join(odd)}")
    scheduler.set_timesteps(count)
    return tuple(_step(scheduler, int(time), count) for time in scheduler.timesteps)


def _step(scheduler: Any, time: int, count: int) -> DenoisingStep:
    config = scheduler.config
    alphas, ddim = scheduler.alphas_cumprod.double(), hasattr(scheduler, "final_alpha_cumprod")
    before = time - config.num_train_timesteps // count
    last = float(scheduler.final_alpha_cumprod) if ddim else 1.0
    now, then = float(alphas[time]), float(alphas[before]) if before >= 0 else last
    ratio = now / then
    clean, noisy, direction, spread = then**0.5, 0.0, (1 - then) ** 0.5, 0.0
    if not ddim:
        clean = then**0.5 * (1 - ratio) / (1 - now)
        noisy, direction = ratio**0.5 * (1 - then) / (1 - now), 0.0
        if time > 0:
            spread = max((1 - then) / (1 - now) * (1 - ratio), 1e-20) ** 0.5
    return DenoisingStep(
        time=time,
        signal=now**0.5,
        noise=(1 - now) ** 0.5,
        guesses_noise=config.prediction_type == "epsilon",
        limit=float(config.clip_sample_range) if config.clip_sample else None,
        clean=clean,
        noisy=noisy,
        direction=direction,
        spread=spread,
    )
