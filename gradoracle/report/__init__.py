"""Views of a report, one module a format. None of them recomputes anything."""
