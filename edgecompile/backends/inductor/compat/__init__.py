"""The only package that touches the private API of torch's compiler; Triton's has two modules in ``backends/cuda``.

``tests/backends/inductor/test_compat.py`` fails loudly when torch changes what is relied on here.
"""
