"""Speaks tokens with the two bundles of ``voice.py``: numpy and the runtime are all that it needs.

python3 speak.py text.ecb sound.ecb OUTPUT.wav TOKEN… --rate 16000

The rate is the model's: the build of ``make_sound`` prints it.
"""

import argparse
import wave

import numpy as np

from edgecompile.runtime import open_bundle


class Voice:
    """Two open bundles. ``noise_scale`` and ``duration_noise_scale`` say how lively it speaks."""

    def __init__(self, text, sound, noise_scale=0.667, duration_noise_scale=0.8, speed=1.0):
        self.text, self.sound = text, sound
        self.noise_scale, self.duration_noise_scale = noise_scale, duration_noise_scale
        self.speed = speed

    def speak(self, tokens, duration_noise=None, noise=None, seed=0):
        """Samples [n] of a text.

        Args:
            tokens: numbers of the tokens, with the blanks between them that the tokenizer adds.
            duration_noise: standard normal numbers [2, tokens]; None: drawn by ``seed``.
            noise: a function from a shape, (size, frames), to standard normal numbers; None: drawn.
            seed: seed of what is drawn.
        """
        random = np.random.default_rng(seed)
        ids = np.asarray(tokens, np.int64)[None]
        if duration_noise is None:
            duration_noise = random.standard_normal((2, ids.shape[1]))
        scaled = np.asarray(duration_noise, np.float32)[None] * np.float32(
            self.duration_noise_scale
        )
        told = self.text.run({"input_ids": ids, "duration_noise": scaled})
        frames = np.ceil(told["durations"][0] * np.float32(1 / self.speed)).astype(np.int64)
        # A token's frames are copies of what it says.
        means = np.repeat(told["means"][0], frames, axis=0).T
        deviations = np.exp(np.repeat(told["log_variances"][0], frames, axis=0).T)
        drawn = (random.standard_normal if noise is None else noise)(means.shape)
        latents = means + np.asarray(drawn, np.float32) * deviations * np.float32(self.noise_scale)
        return self.sound.run({"latents": latents[None].astype(np.float32)})["samples"][0]


def main():
    parser = argparse.ArgumentParser(description="Speak tokens into a file of sound.")
    parser.add_argument("text", help="the bundle of make_text")
    parser.add_argument("sound", help="the bundle of make_sound")
    parser.add_argument("output", help="the file to write, .wav")
    parser.add_argument("tokens", nargs="+", type=int, metavar="TOKEN")
    parser.add_argument(
        "--rate",
        type=int,
        required=True,
        metavar="HZ",
        help="samples a second, as the build of make_sound prints them",
    )
    arguments = parser.parse_args()
    with open_bundle(arguments.text) as first, open_bundle(arguments.sound) as second:
        samples = Voice(first, second).speak(arguments.tokens)
    with wave.open(arguments.output, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(arguments.rate)
        file.writeframes((samples.clip(-1, 1) * 32767).astype("<i2").tobytes())


if __name__ == "__main__":
    main()
