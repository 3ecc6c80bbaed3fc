"""The tasks that a model folder can be compiled for, and the one that its config.json names.

The table names for every task the class of transformers that loads the folder and what goes in.
Nothing here loads a framework.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from edgecompile.errors import ModelError

Modality = Literal["text", "audio", "image"]

SEQ2SEQ_LM = "seq2seq-lm"
LOGITS = "logits"


@dataclass(frozen=True)
class Task:
    """One use of a model.

    Attributes:
        name: the value of ``--task``.
        summary: a description of the compiled model, in a few words.
        modality: the modality that the model has to read; None: any.
        heads: the endings of names in config.json's ``architectures`` for which this is the
            default.
        auto: transformers' class that loads a folder for it, if ``architectures`` names no class
            of this kind; "": the bare model.
        bare: whether only hidden states are wanted, whatever head ``architectures`` names.
    """

    name: str
    summary: str
    modality: Modality | None = "text"
    heads: tuple[str, ...] = ()
    auto: str = ""
    bare: bool = False

    def names_head(self, architecture: str) -> bool:
        """Whether a class of transformers is one for this task, by its name."""
        return any(re.search(pattern + "$", architecture) for pattern in self.heads)


#: In the order in which an architecture's name is looked up.
TASKS: tuple[Task, ...] = (
    Task(
        "sequence-classification",
        "scores of each class, for the whole text",
        heads=("ForSequenceClassification",),
        auto="AutoModelForSequenceClassification",
    ),
    Task(
        "token-classification",
        "scores of each class, for every token",
        heads=("ForTokenClassification",),
        auto="AutoModelForTokenClassification",
    ),
    Task(
        "question-answering",
        "scores of each token as the answer's start and end",
        heads=("ForQuestionAnswering(Simple)?",),
        auto="AutoModelForQuestionAnswering",
    ),
    Task(
        "causal-lm",
        "generation of text, with a cache",
        heads=("ForCausalLM", "LMHeadModel"),
        auto="AutoModelForCausalLM",
    ),
    Task(
        "audio",
        "an encoder or classifier of waveforms or spectrograms",
        "audio",
        heads=("ForCTC", "ForAudioClassification", "ForAudioFrameClassification", "ForXVector"),
    ),
    Task(
        "image",
        "an encoder or classifier of images",
        "image",
        heads=(
            "ForImageClassification",
            "ForImageClassificationWithTeacher",
            "ForSemanticSegmentation",
            "ForDepthEstimation",
        ),
    ),
    Task(
        SEQ2SEQ_LM,
        "generation from a source by an encoder-decoder model, with a cache",
        None,
        auto="AutoModelForSeq2SeqLM",
    ),
    Task("seq2seq-encoder", "the encoder's hidden states of an encoder-decoder model", bare=True),
    Task(
        "feature-extraction", "hidden states, or a sentence embedding made of them", None, bare=True
    ),
    Task(LOGITS, "what the class in config.json's architectures returns, without a cache", None),
)
TASK_NAMES: tuple[str, ...] = tuple(task.name for task in TASKS)

#: The modality of a model by the name of what it chiefly reads.
_READS: Mapping[str, Modality] = {
    "input_ids": "text",
    "input_values": "audio",
    "input_features": "audio",
    "pixel_values": "image",
}


def reads(main_input: str) -> Modality | None:
    """The modality of a model whose main input has this name; None: none of those."""
    return _READS.get(main_input)


def find_task(name: str) -> Task:
    """The task of that name, which is one of :data:`TASK_NAMES`."""
    return TASKS[TASK_NAMES.index(name)]


def architecture_of(config: Mapping[str, Any]) -> str:
    """The class that wrote the folder, as far as config.json says; "" where it doesn't."""
    names = config.get("architectures")
    return str(names[0]) if isinstance(names, list) and names else ""


def choose_task(
    config: Mapping[str, Any], asked: str | None, *, main_input: str, pipeline: bool
) -> Task:
    """The task that a folder is compiled for.

    Args:
        config: the folder's config.json.
        asked: the value of ``--task``; None: the task that config.json suggests.
        main_input: transformers' name of the model's main input (``input_ids``).
        pipeline: whether the folder has a modules.json.

    Raises:
        ModelError: there is no such task, or it is one for models that read something else.
    """
    kind = reads(main_input)
    if asked is not None:
        task = find_task(asked)
        if task.modality not in (None, kind):
            raise ModelError(
                f"the task {task.name} is for models of {task.modality}, this one reads "
                f"{main_input}",
                hint="leave `task` out",
            )
        return task
    if kind in ("audio", "image"):
        return find_task(kind)
    if pipeline:
        return find_task("feature-extraction")
    architecture = architecture_of(config)
    for task in TASKS:
        if task.names_head(architecture):
            return task
    if config.get("is_encoder_decoder"):
        return find_task("seq2seq-encoder")
    named = re.search(r"For[A-Z]\w*$", architecture) and not architecture.endswith("ForPreTraining")
    return find_task(LOGITS if named else "feature-extraction")
