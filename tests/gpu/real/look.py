#!/usr/bin/env python3
"""What our readings and those of NVIDIA's own binding are worth on a real GPU: idle, at work, and spinning.

For a machine with an NVIDIA GPU (Ampere or newer for the loads), its driver and Python with nvidia-ml-py; no CUDA
toolkit. Needs one test binary of this project, `cargo test --test gpu --no-run`, built there or elsewhere:

    python3 tests/gpu/real/look.py --dump target/debug/deps/gpu-<hash> | tee look.txt

In each phase it waits for the driver's rings to fill, looks twice with both readers, and prints every reading of
theirs beside ours with what each counter did in between. Exit status 1: the two readers differ in something that
does not change while one looks. It changes no setting of the GPU. A phase without libcuda is skipped.
"""

import argparse
import ctypes
import json
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))

# What may not differ from one reader to the other, however long lies between them.
STEADY = [
    "identity/uuid",
    "identity/minor",
    "identity/pci",
    "identity/name",
    "readings/power_limit",
    "readings/sm_clock_max",
    "readings/mig",
    "readings/memory/total",
    "readings/fields/recovery_action",
]
SLICE_NS = 500_000_000
BUFFER_BYTES = 256 << 20


# ------------------------------------------------------------------ loads


class Cuda:
    """The few calls of the driver API that a load needs."""

    def __init__(self):
        self.lib = ctypes.CDLL("libcuda.so.1")
        device, context, self.module = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        with open(os.path.join(HERE, "kernels.ptx"), "rb") as text:
            self.call("cuModuleLoadData", ctypes.byref(self.module), text.read() + b"\0")

    def call(self, name, *arguments):
        code = getattr(self.lib, name)(*arguments)
        if code != 0:
            raise OSError(f"{name}: CUresult {code}")

    def buffer(self):
        pointer = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(BUFFER_BYTES))
        self.call("cuMemsetD8_v2", pointer, ctypes.c_ubyte(0), ctypes.c_size_t(BUFFER_BYTES))
        return pointer

    def run(self, kernel, blocks, threads, *arguments):
        function = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(function), self.module, kernel)
        given = (ctypes.c_void_p * len(arguments))(*[ctypes.addressof(a) for a in arguments])
        self.call("cuLaunchKernel", function, blocks, 1, 1, threads, 1, 1, 0, None, given, None)
        self.call("cuCtxSynchronize")


def load(kind):
    """The child of a phase: keeps the GPU at it until it is ended."""
    try:
        cuda = Cuda()
    except OSError as missing:
        print(f"skipped: {missing}", flush=True)
        return
    buffer, ns = cuda.buffer(), ctypes.c_uint64(SLICE_NS)
    words = ctypes.c_uint64(BUFFER_BYTES // 4)
    print("ready", flush=True)
    while os.getppid() != 1:
        if kind == "spin":
            cuda.run(b"spin", 1, 32, ns)
        else:
            cuda.run(b"busy", 1056, 256, ns, buffer, words)


# ------------------------------------------------------------------ looks


def ours(dump, gpm):
    command = [dump, "--ignored", "--exact", "dump::dump", "--nocapture"]
    environment = {**os.environ, "GPU_REAPER_GPM": gpm}
    said = subprocess.run(command, stdout=subprocess.PIPE, env=environment, check=True, text=True).stdout
    line = next(line for line in said.splitlines() if line.startswith("report: "))
    return json.loads(line[len("report: "):])


def look(dump):
    import ml_py

    at = time.monotonic()
    quick, whole, theirs = ours(dump, "off"), ours(dump, "on"), ml_py.report("on")
    return {"at": at, "took_ms": (quick["took_ms"], whole["took_ms"]), "ours": whole["report"], "theirs": theirs}


def leaves(unit):
    """Every reading of a unit by its path: its value, or in brackets why there is none."""
    found = {}

    def walk(path, node):
        if isinstance(node, dict) and ("value" in node or "error" in node):
            if node.get("value") is None:
                why = node.get("absent", node.get("error"))
                found[path] = f"[{why}]"
            else:
                walk(path, node["value"])
        elif isinstance(node, dict):
            for name, inner in node.items():
                walk(f"{path}/{name}" if path else name, inner)
        elif isinstance(node, list):
            found[path] = ", ".join(f"{p['pid']} {p['kind']} {p['memory'].get('value')}" for p in node) or "none"
        else:
            found[path] = node

    walk("", unit)
    return found


def change(before, after, seconds):
    if not (isinstance(before, int) and isinstance(after, int)) or before == after:
        return ""
    return f"{after - before:+d}, {(after - before) / seconds:.6g} a second"


def shown(phase, first, second):
    """Prints one phase; the paths in which the readers differ and may not."""
    seconds = second["at"] - first["at"]
    wrong = []
    print(f"\n=== {phase}: two looks {seconds:.1f} s apart; one took {second['took_ms'][0]} ms, with GPM "
          f"{second['took_ms'][1]} ms; driver {second['ours']['driver'].get('value')}")
    for place, unit in enumerate(second["ours"]["units"]):
        before, now = leaves(first["ours"]["units"][place]), leaves(unit)
        theirs = leaves(second["theirs"]["units"][place])
        print(f"--- unit {place}\n{'reading':<42} {'ours':>24} {'nvidia-ml-py':>24}  change of ours")
        for path, value in now.items():
            other = theirs.get(path, "-")
            print(f"{path:<42} {value!s:>24} {other!s:>24}  {change(before[path], value, seconds)}")
            refused = [isinstance(v, str) and v.startswith("[") for v in (value, other)]
            if path in STEADY and value != other and refused != [True, True]:
                wrong.append(f"{phase}: unit {place}: {path}: {value} and {other}")
    return wrong


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dump", help="the test binary of tests/gpu")
    parser.add_argument("--settle", type=float, default=12, help="seconds before the first look")
    parser.add_argument("--seconds", type=float, default=6, help="seconds between two looks")
    parser.add_argument("--phases", default="idle,busy,spin")
    parser.add_argument("--load", choices=["busy", "spin"], help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.load:
        return load(asked.load)
    if not asked.dump:
        parser.error("--dump is missing")
    wrong = []
    for phase in asked.phases.split(","):
        child = None
        if phase != "idle":
            command = [sys.executable, os.path.abspath(__file__), "--load", phase]
            child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            said = child.stdout.readline().strip()
            if said != "ready":
                child.wait()
                print(f"\n=== {phase}: {said or 'its load ended'}")
                continue
        try:
            time.sleep(asked.settle)
            first = look(asked.dump)
            time.sleep(asked.seconds)
            wrong += shown(phase, first, look(asked.dump))
        finally:
            if child:
                child.kill()
                child.wait()
    print("\n" + ("\n".join(["the readers differ:", *wrong]) if wrong else "the readers agree in all that is steady"))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
