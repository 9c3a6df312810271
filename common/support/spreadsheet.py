"""Cells of the CSV files that people open in a spreadsheet."""


def harmless(cell: object) -> str:
    """A cell that no spreadsheet takes for a formula: one that looks like one begins with '."""
    text = str(cell)
    if not text.startswith(("=", "+", "-", "@", "\t", "\r")):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text
