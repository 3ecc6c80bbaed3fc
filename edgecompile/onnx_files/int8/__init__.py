"""int8 by quantize and dequantize nodes."""
