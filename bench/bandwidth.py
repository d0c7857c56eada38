"""How far is `check`'s read kernel (the C library's strnlen, nothing compiled) from a read loop in C? Needs a C compiler.

    python bench/bandwidth.py [--json]

Prints GB/s of both for each buffer size, all allowed cores, the best of three passes, and the ratio from memory.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from servefit.host.bandwidth import MIB, sweep
from servefit.host.machine import allowed_cores, available_bytes, last_cache_bytes

SIZES_BYTES = (16 * MIB, 64 * MIB, 256 * MIB, 512 * MIB, 1024 * MIB)

SOURCE = r"""
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
typedef unsigned long long v8 __attribute__((vector_size(64)));
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
typedef struct { char *at; size_t n; int times; unsigned long long sum; } Job;
static void *work(void *arg) {
  Job *j = arg; v8 a = {0}, b = {0}, c = {0}, d = {0};
  for (int r = 0; r < j->times; r++) {
    for (size_t i = 0; i < j->n; i += 256) {
      a += *(v8 *)(j->at + i); b += *(v8 *)(j->at + i + 64); c += *(v8 *)(j->at + i + 128); d += *(v8 *)(j->at + i + 192);
    }
    __asm__ volatile("" ::: "memory");
  }
  a += b + c + d;
  for (int i = 0; i < 8; i++) j->sum += a[i];
  return 0;
}
int main(int argc, char **argv) {
  int threads = atoi(argv[1]);
  for (int k = 2; k < argc; k++) {
    size_t n = strtoull(argv[k], 0, 10), share = n / threads / 256 * 256;
    char *p = mmap(0, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(p, 1, n);
    int times = n < 67108864 ? 67108864 / n : 1;
    double best = 1e9;
    for (int pass = 0; pass < 3; pass++) {
      pthread_t t[256]; static Job jobs[256];
      double start = now();
      for (int i = 0; i < threads; i++) { jobs[i] = (Job){p + share * i, share, times, 0}; pthread_create(t + i, 0, work, jobs + i); }
      for (int i = 0; i < threads; i++) pthread_join(t[i], 0);
      double took = (now() - start) / times;
      if (took < best) best = took;
    }
    printf("%zu %.0f\n", n, share * threads / best);
    munmap(p, n);
  }
}
"""


def c_loop(threads: int, sizes: tuple[int, ...]) -> dict[int, float]:
    """Bytes a second of the loop in C for each buffer size."""
    compiler = shutil.which("cc") or sys.exit("bench/bandwidth.py needs a C compiler (cc).")
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "read.c", Path(folder) / "read"
        source.write_text(SOURCE, encoding="utf-8")
        flags = ["-O3", "-march=native", "-pthread", str(source), "-o", str(program)]
        subprocess.run([compiler, *flags], check=True)
        done = subprocess.run(
            [str(program), str(threads), *map(str, sizes)], check=True, capture_output=True, text=True
        )
    return {int(size): float(speed) for size, speed in (line.split() for line in done.stdout.splitlines())}


def main() -> None:
    """Measure both and print them side by side."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    threads, room = allowed_cores(), available_bytes() or 0
    sizes = tuple(s for s in SIZES_BYTES if s <= room // 4)
    ours = sweep(threads=threads, available_bytes=room, cache_bytes=2 * SIZES_BYTES[-1], budget_s=60, sizes_bytes=sizes)
    assert ours is not None, "no strnlen, or no memory"
    theirs = c_loop(threads, sizes)
    rows = [
        {"buffer_bytes": p.buffer_bytes, "strnlen_bytes_per_s": p.bytes_per_s, "c_bytes_per_s": theirs[p.buffer_bytes],
         "ratio": p.bytes_per_s / theirs[p.buffer_bytes]}
        for p in ours.points
    ]  # fmt: skip
    if as_json:
        print(json.dumps({"kernel": ours.kernel, "threads": threads, "cache_bytes": last_cache_bytes(), "rows": rows}))
        return
    print(f"{ours.kernel}, {threads} threads, reported last cache level {(last_cache_bytes() or 0) / MIB:,.0f} MiB")
    print("buffer MiB   strnlen GB/s   C loop GB/s   ratio")
    for row in rows:
        speeds = f"{row['strnlen_bytes_per_s'] / 1e9:12.1f} {row['c_bytes_per_s'] / 1e9:13.1f}"
        print(f"{row['buffer_bytes'] / MIB:10,.0f}   {speeds}   {row['ratio']:5.2f}")


if __name__ == "__main__":
    main()
