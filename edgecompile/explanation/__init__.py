"""Why a model is refused or slow."""
