"""The rounding reading: how large an error the precision contract of a kernel explains, element by element."""
