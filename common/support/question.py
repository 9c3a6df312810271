"""Asking the person at the terminal."""


def answer_to(question: str) -> str:
    """What they type, without spaces around it; empty where they end the input (Ctrl-D)."""
    try:
        return input(question).strip()
    except EOFError:
        print()
        return ""
