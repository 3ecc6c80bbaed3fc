"""Loads model folders in Hugging Face layout: the task, the model, its inputs and outputs.

A folder holds config.json and safetensors weights; with a sentence-transformers ``modules.json``
pooling and normalization become part of the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgecompile.errors import ModelError
from edgecompile.files import hash_tree
from edgecompile.loaders.checkpoints.packed_folder import find_packed
from edgecompile.loaders.folders.ctc import find_ctc
from edgecompile.loaders.folders.files import find_weights, plain_name, read_object
from edgecompile.loaders.folders.heads import assemble, keep_outputs, label_names, pipeline_for
from edgecompile.loaders.folders.inputs import find_inputs
from edgecompile.loaders.folders.pretrained import drop_pooler, load_pretrained, main_input
from edgecompile.loaders.folders.sentence_modules import (
    SentencePipeline,
    read_pipeline,
    read_projection,
)
from edgecompile.loaders.input_specs import with_pads
from edgecompile.models.loaded import LoadedModel, ModelSource
from edgecompile.models.modules import NamedModule
from edgecompile.models.options import LoadOptions
from edgecompile.models.probing import probe_model
from edgecompile.models.tasks import SEQ2SEQ_LM, Task, choose_task, reads
from edgecompile.runtime.format.manifest.schema import CAUSAL_LM


def load_folder(folder: Path, options: LoadOptions) -> LoadedModel:
    """Loads a folder in Hugging Face layout; see :func:`edgecompile.loaders.load.load_model`.

    The task decides: texts are ``input_ids`` and ``attention_mask`` [batch, length], int64
    (``token_type_ids`` if wanted); for others see :mod:`edgecompile.loaders.folders.inputs`. Outputs are those of
    :class:`~edgecompile.loaders.folders.sentence_modules.SentenceEncoder` where there is a pooling or a pipeline,
    else what transformers' class returns, as far as the task is about it.

    Raises:
        ModelError: the folder is incomplete, or the model isn't supported.
        MissingDependencyError: transformers isn't installed.
    """
    pipeline = read_pipeline(folder) if (folder / "modules.json").is_file() else None
    inner = pipeline.transformer if pipeline is not None else folder
    config = read_object(inner / "config.json", "the model's configuration")
    main = main_input(config)
    find_weights(inner)
    if pipeline is None:
        pipeline = read_projection(inner, config)
    bare = pipeline is not None and not pipeline.sparse
    task = choose_task(config, options.task, main_input=main, pipeline=bare)
    packed = find_packed(inner, config)
    generates = task.name in (CAUSAL_LM, SEQ2SEQ_LM)
    pooling, steps = (None, ()) if generates else pipeline_for(pipeline, options, task)
    headed = pooling is not None or bool(steps)
    if headed and reads(main) != "text":
        raise ModelError(f"pooling is for texts, but this model reads {main}")
    if packed is not None and task.name != CAUSAL_LM:
        raise ModelError(
            f"'{folder}': {packed.packing.name} weights are read for {CAUSAL_LM}, not for {task.name}",
            hint="start from the folder with the plain float weights",
        )
    transformer, chosen = load_pretrained(inner, config, task, packed)
    tokenizer = next((p for d in (folder, inner) if (p := d / "tokenizer.json").is_file()), None)
    name = options.name or plain_name(folder.resolve().name)
    source = ModelSource(
        kind="folder",
        spec=str(folder),
        sha256=hash_tree(folder),
        details=_details(transformer, config, task, pipeline),
    )
    if generates:
        from edgecompile.loaders.generators.makers import GeneratorMaker  # needs transformers

        stored = None if packed is None else packed.stored()
        if stored is not None:
            chosen = (*chosen, f"a folder of {stored.kind} weights: {stored.describe()}")
        generator = GeneratorMaker(
            task.name,
            transformer,
            options,
            name=name,
            source=source,
            tokenizer=tokenizer,
            folder=inner,
            notes=chosen,
        ).make()
        return replace(generator, stored=stored)
    if headed:
        drop_pooler(transformer)
    made = find_inputs(transformer, inner, config, options, task, pooled=headed)
    inputs = with_pads(made.inputs, options)
    module = assemble(
        transformer,
        [spec.name for spec in inputs],
        pooling=pooling,
        steps=steps,
        constants=made.constants,
        softmax=options.softmax,
    )
    outputs, copied = probe_model(module, inputs, made.axes, name)
    task_outputs = keep_outputs(task, outputs)
    if task_outputs is not None:
        module = NamedModule(module, [spec.name for spec in inputs], only=task_outputs).eval()
        outputs = tuple(spec for spec in outputs if spec.name in task_outputs)
    if options.softmax and not any(spec.name.endswith("scores") for spec in outputs):
        raise ModelError(
            f"`softmax`: {type(transformer).__name__} has no logits, only "
            + ", ".join(spec.name for spec in outputs)
        )
    remarks: list[str] = []
    speech = find_ctc(transformer, inner, inputs, outputs, remarks)
    return LoadedModel(
        name=name,
        module=module,
        inputs=inputs,
        outputs=outputs,
        axes=made.axes,
        length_axis=made.length_axis,
        source=source,
        tokenizer=None if speech is not None else tokenizer,  # its inputs are no texts
        notes=(*chosen, *made.notes, *copied, *remarks),
        labels=label_names(transformer.config, outputs),
        load=options.to_json(),
        speech=speech,
    )


def _details(
    model: Any, config: Mapping[str, Any], task: Task, pipeline: SentencePipeline | None
) -> dict[str, str]:
    return {
        "architecture": type(model).__name__,
        "model_type": str(config.get("model_type")),
        "task": task.name,
        **({} if pipeline is None else {"pipeline": pipeline.description}),
    }
