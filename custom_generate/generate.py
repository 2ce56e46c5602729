"""MBR decoding as a decoding method of transformers: `model.generate(..., custom_generate=...)` calls `generate`."""

from mbrace.models.mbr_generate import mbr_generate as generate

__all__ = ["generate"]
