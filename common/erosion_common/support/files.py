"""Reads ordinary files of a bounded size, and writes files atomically, so never half of one."""

import contextlib
import errno
import fcntl
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path
from shlex import quote
from typing import IO, Any, BinaryIO

MOST_NAMED_BYTES = 16 * 2**20  # of a key, a certificate, a kit, a site file or a study file
MOST_KEPT_BYTES = 256 * 2**20  # of a file that this program keeps as one JSON value
MOST_LINE_BYTES = 16 * 2**20  # of a file that it keeps line by line, which may be of any length

# What file systems say that know no `fsync` of a folder, and what the permissions say.
_CANNOT_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF, errno.EACCES, errno.EPERM}


class FileIn:
    """A file's place in a folder, as an attribute of a class with a `path`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: Any, _owner: object = None) -> Path:
        place: Path = folder.path / self._name
        return place


def open_named(path: Path) -> BinaryIO:
    """Open an ordinary file to read. Raises OSError, also for a pipe, which may never end."""
    return _opened(path, os.O_RDONLY)


def open_lock(path: Path) -> BinaryIO:
    """Open an ordinary file, made if need be, to be locked. Raises OSError as `open_named` does."""
    return _opened(path, os.O_RDWR | os.O_CREAT)  # NFS locks only what may be written


def _opened(path: Path, flags: int) -> BinaryIO:
    handle = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)  # of a pipe, do not wait
    try:
        _check_kind(path, os.fstat(handle).st_mode)
        return os.fdopen(handle, "rb")
    except BaseException:  # nobody else has the file yet
        os.close(handle)
        raise


def check_named(path: Path) -> None:
    """Raise OSError unless it is an ordinary file. Opens nothing: closing would release locks."""
    _check_kind(path, path.stat().st_mode)


def _check_kind(path: Path, mode: int) -> None:
    if stat.S_ISDIR(mode):  # what Python raises names the handle
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is no ordinary file", str(path))


def read_named(path: Path, *, most_bytes: int = MOST_NAMED_BYTES) -> bytes:
    """Return an ordinary file's content. Raises OSError, also above `most_bytes`."""
    with open_named(path) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        what = f"it has more than the {most_bytes // 2**20} MiB that are read of such a file"
        raise OSError(errno.EFBIG, what, str(path))
    return content


def lines_of(path: Path) -> Iterator[bytes]:
    """Yield the lines of an ordinary file with their ends, one after another. Raises OSError."""
    with open_named(path) as file:
        while line := file.readline(MOST_LINE_BYTES + 1):
            if len(line) > MOST_LINE_BYTES:
                what = f"it has a line of more than {MOST_LINE_BYTES // 2**20} MiB"
                raise OSError(errno.EFBIG, what, str(path))
            yield line


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the file where an OSError of the block names none, as a full disk's does."""
    try:
        yield
    except OSError as problem:
        problem.filename = problem.filename or str(path)
        raise


@contextlib.contextmanager
def replacing(
    path: Path,
    *,
    mode: int | None = None,
    once: Callable[[Path], object] = lambda _new: None,
    first_stays: bool = False,
) -> Iterator[Path]:
    """Yield the name of a file to write in the block; then it takes the place of `path`.

    After a crash or a power cut it is the old file or, after the block, the new one. `mode` are the
    permissions, by the umask if None; before, only the owner can open it. `once` is called with the
    new file before it counts; what it raises keeps the old one. `first_stays`: what another program
    has put there meanwhile stays. Raises OSError, also where `path` is a folder or a device.
    """
    if path.exists():
        check_named(path)
    missing = list(takewhile(lambda folder: not folder.exists(), path.parents))
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as problem:
        problem.filename = str(path)  # the name that somebody knows
        raise
    if os.geteuid() == 0:  # or what root writes, a revocation say, its account could not read
        owner = (path if path.exists() else path.parent).stat()
        with contextlib.suppress(OSError):  # root of a container or of NFS lacks the right
            os.fchown(handle, owner.st_uid, owner.st_gid)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fdatasync(file.fileno())
        once(temporary)
        temporary.chmod(0o666 & ~umask() if mode is None else mode)
        if not first_stays or not _linked(temporary, path):
            temporary.replace(path)
    except BaseException as problem:  # Ctrl-C, too, must leave no half-written file
        temporary.unlink(missing_ok=True)
        if isinstance(problem, OSError) and problem.filename in (None, name):
            problem.filename = str(path)
        raise
    for folder in (path.parent, *(made.parent for made in missing)):
        sync_folder(folder)


def _linked(temporary: Path, path: Path) -> bool:
    """Return whether `path` exists now, from here or elsewhere; False if links are unsupported."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass
    except OSError:
        return False
    temporary.unlink()
    return True


def sync_folder(folder: Path) -> None:
    """Wait until the disk has a folder's entries, where it can be waited for. Raises OSError."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as problem:
        if problem.errno not in _CANNOT_SYNC:
            raise


def write_atomically(
    path: Path, content: bytes | str, *, mode: int | None = None, first_stays: bool = False
) -> None:
    """Replace `path` by `content`; see `replacing`."""
    with replacing(path, mode=mode, first_stays=first_stays) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def remove_unfinished(path: Path) -> None:
    """What `replacing` left where this program was killed; nobody else must write there now."""
    for unfinished in path.parent.glob(f".{path.name}.*"):
        unfinished.unlink(missing_ok=True)


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Lock the folder within the block. Raises BlockingIOError if another process holds it.

    It is released when this program ends, however it ends. Where a file system knows no locks, or
    there is no such folder, nothing is held.
    """
    with contextlib.ExitStack() as stack:
        try:
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            stack.callback(os.close, handle)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:
            pass
        yield


def cut_to_whole_lines(path: Path) -> None:
    """Take off a last line that was not written to its end: the disk was full. Raises OSError."""
    try:
        num_bytes = whole_bytes(path)
    except FileNotFoundError:
        return
    if num_bytes < path.stat().st_size:
        os.truncate(path, num_bytes)


def whole_bytes(path: Path) -> int:
    """Return how long an ordinary file is up to the end of its last whole line. Raises OSError."""
    with open_named(path) as file:
        at = file.seek(0, os.SEEK_END)
        while at > 0:
            start = max(0, at - 2**16)
            file.seek(start)
            found = file.read(at - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            at = start
    return 0


def umask() -> int:
    """Return the permissions that new files of this process do not get."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    (line,) = (line for line in status.splitlines() if line.startswith("Umask:"))
    return int(line.split()[1], 8)


def version_of(path: Path) -> tuple[int, ...]:
    """Differs once the file was replaced or may be read by others; () where there is no file."""
    try:
        status = path.stat()
    except OSError:
        return ()
    # The inode, because two replacements within a tick of the clock have the same time; the time of
    # the last change of owner or mode, because what could not be read may be readable since then.
    return (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def written_at(path: Path) -> int:
    """Return when a file was written, in ns; 0 where another program has removed it meanwhile."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def is_in_place(path: Path, file: IO[Any]) -> bool:
    """Return whether the open file is still the one at `path`. Raises OSError."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def file_system_of(path: Path) -> str:
    """Return the kind of file system that `path` is on, as the kernel names it; "": unknown."""
    device = path.stat().st_dev
    place = f"{os.major(device)}:{os.minor(device)}"
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
            about, _, kind = line.partition(" - ")
            if about.split()[2] == place:
                return kind.split()[0]
    return ""


def make_private_folder(path: Path) -> None:
    """Make `path` if need be, and close it to everybody else."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.chmod(0o700)


def write_private(path: Path, content: bytes | str, *, first_stays: bool = False) -> None:
    """Replace `path` by `content`, from the first byte readable by its owner alone."""
    write_atomically(path, content, mode=0o600, first_stays=first_stays)


def exposure(path: Path) -> str | None:
    """Return why a private file is exposed, with the remedy, or None. Raises OSError."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077 == 0:
        return None
    return (
        f"others on this machine may read it (mode {mode:04o}); run: chmod 600 {quote(str(path))}"
    )
