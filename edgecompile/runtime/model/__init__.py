"""The public interface: ``open_bundle`` and the model that it returns."""
