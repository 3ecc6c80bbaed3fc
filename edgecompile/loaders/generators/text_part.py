"""The language model within a model of images, sound and text, over the same weights."""

from __future__ import annotations

from typing import Any

import torch

from edgecompile.export.checks import TOLERANCE, compare_outputs
from edgecompile.loaders.folders.pretrained import import_transformers, quiet

_TRIED = 8


def text_part(model: Any) -> Any:
    """The model without what text alone doesn't run, if it has such parts and agrees; else itself.

    A program's constants are all the weights of its module, whether it reads them or not.

    Args:
        model: a transformers model that takes text.
    """
    transformers = import_transformers()
    config = model.config.get_text_config(decoder=True)
    kind = transformers.MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if config is model.config or kind is None or isinstance(model, kind):
        return model
    with quiet(transformers), torch.no_grad():
        try:
            with torch.device("meta"):
                text = kind(config).eval()
            decoder = model.get_decoder()
            if type(text.base_model) is not type(decoder):
                return model
            setattr(text, text.base_model_prefix, decoder)
            text.set_output_embeddings(model.get_output_embeddings())
            text.generation_config = model.generation_config
            if any(tensor.is_meta for tensor in (*text.parameters(), *text.buffers())):
                return model
            tokens = torch.arange(_TRIED)[None] % decoder.get_input_embeddings().weight.shape[0]
            got, want = (
                {"logits": part(input_ids=tokens, use_cache=False).logits} for part in (text, model)
            )
        except Exception:  # whatever a model raises that isn't made for this
            return model
    error = compare_outputs(got, want)
    return text if not isinstance(error, str) and error <= TOLERANCE else model
