"""A separate wall clock for a program, which can be stepped while it runs.

A small library is loaded before the C library: it adds to the wall clock what stands in a file.
The monotonic clock stays as it is, as where somebody sets a machine's clock.
"""

import os
import shutil
import struct
import subprocess
from pathlib import Path

from experiments.faults.program import PATIENCE_SECONDS

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static int64_t nothing = 0;
static volatile int64_t *ahead = &nothing;  /* seconds */
static int (*real)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("STEPPED_CLOCK");
  int file = path ? open(path, O_RDONLY) : -1;
  void *shared = file < 0 ? MAP_FAILED : mmap(0, 8, PROT_READ, MAP_SHARED, file, 0);
  if (shared != MAP_FAILED) ahead = shared;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  int result = real(clock, now);
  if (!result && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += *ahead;
  return result;
}

int gettimeofday(struct timeval *now, void *zone) {
  struct timespec exact;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &exact);
  now->tv_sec = exact.tv_sec;
  now->tv_usec = exact.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *where) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (where) *where = now.tv_sec;
  return now.tv_sec;
}
"""


def why_no_steps() -> str | None:
    """Return why a program's clock cannot be stepped here; None where it can."""
    return None if shutil.which("cc") else "there is no C compiler (cc) here"


class SteppedClock:
    """Start programs with `environment`; `step` moves the wall clock of all of them at once."""

    def __init__(self, folder: Path) -> None:
        """Compile the library into `folder`."""
        self._file, library = folder / "clock", folder / "stepped_clock.so"
        self._file.write_bytes(bytes(8))
        source = folder / "stepped_clock.c"
        source.write_text(_SOURCE, encoding="ascii")
        command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"]
        subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_SECONDS)
        self.environment = {"LD_PRELOAD": str(library), "STEPPED_CLOCK": str(self._file)}

    def step(self, seconds: int) -> None:
        """From now on the clock is so far ahead of the machine's, or behind it."""
        with self._file.open("r+b") as file:
            os.pwrite(file.fileno(), struct.pack("q", seconds), 0)
