"""The faster way of pi0 and pi0.5 on a GPU: Triton kernels and pieces that torch compiles. Equal to `networks/`."""
