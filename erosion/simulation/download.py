"""The public data sets: their folder, and `erosion data NAME`, which fetches one (pooch)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from erosion_common.errors import ErosionError, LinkError, SiteError

TIMEOUT_SECONDS = 30.0  # without a byte from the server


@dataclass(frozen=True, slots=True)
class DataSet:
    """A public data set: where its files are, and how each is known to be the right one."""

    about: str  # title and licence, one line
    url: str  # the folder that holds the files
    sha256: Mapping[str, str]  # file name -> hexadecimal


DATA_SETS: Mapping[str, DataSet] = {
    "heart-disease": DataSet(
        about="Heart Disease, four hospitals (UCI Machine Learning Repository, CC BY 4.0)",
        url="https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease",
        sha256={
            "processed.cleveland.data": (
                "a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8"
            ),
            "processed.hungarian.data": (
                "d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796"
            ),
            "processed.switzerland.data": (
                "834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314"
            ),
            "processed.va.data": (
                "e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f"
            ),
        },
    ),
    "mnist": DataSet(
        about="MNIST, handwritten digits (LeCun, Cortes, Burges; CC BY-SA 3.0)",
        url="https://ossci-datasets.s3.amazonaws.com/mnist",  # torchvision's mirror
        sha256={
            "train-images-idx3-ubyte.gz": (
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"
            ),
            "train-labels-idx1-ubyte.gz": (
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"
            ),
            "t10k-images-idx3-ubyte.gz": (
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"
            ),
            "t10k-labels-idx1-ubyte.gz": (
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"
            ),
        },
    ),
}


def fetch(name: str, data_dir: Path) -> Path:
    """Fetch the data set `name` into `data_dir`/`name`, and return that folder.

    Files that are there already and have the right checksum are kept, so a second call needs no
    internet, and neither does one after the files were put there by hand. Raises LinkError where a
    file cannot be had or is not the known one, and SiteError where the folder cannot be written.
    """
    if name not in DATA_SETS:
        raise ErosionError(
            f"There is no data set {name!r} to download; choose one of {', '.join(DATA_SETS)}."
        )
    return fetch_data_set(DATA_SETS[name], data_dir / name)


def fetch_data_set(data_set: DataSet, folder: Path) -> Path:
    """Fetch every file of `data_set` into `folder`; see `fetch`."""
    import pooch  # which takes a third of a second

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise SiteError(
            f"The folder {folder} cannot be made ({problem.strerror})",
            remedy="Give another --data-dir.",
        ) from None
    for file_name, sha256 in data_set.sha256.items():
        url = f"{data_set.url}/{file_name}"
        try:
            pooch.retrieve(
                url,
                known_hash=f"sha256:{sha256}",
                fname=file_name,
                path=folder,
                downloader=pooch.HTTPDownloader(timeout=TIMEOUT_SECONDS),
            )
        except OSError as problem:  # every error of `requests` is one
            raise LinkError(
                f"{url} could not be downloaded: {_cause(problem, url)}.\n"
                + _by_hand(data_set, folder)
            ) from None
        except ValueError:  # pooch deletes a file that fails its checksum
            raise LinkError(
                f"{url} is not the known file: its SHA-256 is not {sha256}",
                remedy=f"It was not kept; try again later.\n{_by_hand(data_set, folder)}",
            ) from None
    return folder


def _cause(problem: OSError, url: str) -> str:
    """Return why a download failed, briefly: `requests` nests four exceptions in its message."""
    response = getattr(problem, "response", None)
    if response is not None:
        return f"the server answered {response.status_code}"
    if problem.strerror:
        return problem.strerror
    return f"no answer from {urlsplit(url).hostname} ({type(problem).__name__})"


def _by_hand(data_set: DataSet, folder: Path) -> str:
    """Return what somebody without internet can do."""
    files = "\n".join(f"  {data_set.url}/{name}" for name in data_set.sha256)
    return (
        "Without internet, fetch these files on another machine, put them into"
        f" {folder.absolute()}, and run this command again to check them:\n{files}"
    )
