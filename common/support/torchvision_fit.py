"""What to say where torchvision does not fit torch: mostly each came from another index."""

from importlib.metadata import PackageNotFoundError, version

_INDEX = "https://download.pytorch.org/whl"


def torchvision_problem(problem: Exception) -> str:
    """What happened and the command that mends it; "" where it is no matter of torchvision."""
    if "torchvision" not in f"{problem} {getattr(problem, 'name', '')}":
        return ""
    torch, torchvision = (_version(package) for package in ("torch", "torchvision"))
    release, _, build = torch.partition("+")
    index = f" --index-url {_INDEX}/{build}" if build else ""
    said = (
        "torchvision is not installed"
        if not torchvision
        else f"torchvision {torchvision} does not fit torch {torch} ({problem}): they are of other"
        " releases, or came from different indexes"
    )
    return f"{said}. Install both from one index: pip install --force-reinstall" + (
        f" torch=={release} torchvision{index}"
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
