"""Triton kernels run in Triton's interpreter, on the CPU: it has to know before it is imported."""

import os

os.environ["TRITON_INTERPRET"] = "1"
