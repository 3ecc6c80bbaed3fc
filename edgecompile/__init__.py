"""edgecompile: ahead-of-time compiled, length-bucketed PyTorch models that run without PyTorch.

    bundle = edgecompile.build("./minilm", texts="queries.txt", output="minilm.ecb")
    outputs = edgecompile.open_bundle("minilm.ecb").run(inputs)

This module is shipped to devices inside every bundle, so it imports nothing: a name is imported when
it is first used. The stub beside it has the types.
"""

__version__ = "0.2.0"

_RUNTIME = {
    "Model": "edgecompile.runtime",
    "open_bundle": "edgecompile.runtime",
}
_BUILD = {
    "BuildOptions": "edgecompile.planning.options",
    "Bundle": "edgecompile.api.build",
    "Explanation": "edgecompile.api.explain",
    "LoadOptions": "edgecompile.models.options",
    "ModelSpec": "edgecompile.loaders.factory_specs",
    "Plan": "edgecompile.api.plan",
    "PlanOptions": "edgecompile.planning.options",
    "ProgressEvent": "edgecompile.api.progress",
    "Signature": "edgecompile.signing.sign",
    "Verification": "edgecompile.api.verify",
    "build": "edgecompile.api.build",
    "explain": "edgecompile.api.explain",
    "generate_key": "edgecompile.signing.keys",
    "plan": "edgecompile.api.plan",
    "sbom": "edgecompile.bundle.materials",
    "sign": "edgecompile.signing.sign",
    "verify": "edgecompile.api.verify",
    "verify_signature": "edgecompile.signing.sign",
}


def __getattr__(name):
    from importlib import import_module

    if name == "errors":
        try:
            return import_module("edgecompile.errors")
        except ImportError:  # a device has the runtime alone
            return import_module("edgecompile.runtime.base.errors")
    where = _RUNTIME.get(name) or _BUILD.get(name)
    if where is None:
        raise AttributeError(f"module 'edgecompile' has no attribute {name!r}")
    try:
        module = import_module(where)
    except ModuleNotFoundError as error:
        if error.name is None or not where.startswith(error.name):
            raise
        raise ImportError(
            f"edgecompile.{name} belongs to the build tools, and this is the runtime alone: "
            "build on a machine with edgecompile and torch"
        ) from None
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__():
    from importlib.util import find_spec

    names = {"errors", *_RUNTIME, *globals()}
    return sorted(names.union(_BUILD) if find_spec("edgecompile.api") else names)
