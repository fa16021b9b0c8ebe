"""What worker processes do in tests/execution/test_local_pool.py: every way in which a kernel can end, on demand."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time

from gradoracle.execution.process import Work
from gradoracle.model.job import Phase

state = {"jobs": 0}


def start(setup: object) -> Work:
    """The entry: ``setup`` comes back with every job of kind "setup"."""
    if setup == "raise":
        raise RuntimeError("no such accelerator")
    if setup == "die":
        os._exit(9)

    def work(job: tuple[str, object], phase: Phase) -> object:
        kind, argument = job
        state["jobs"] += 1
        if kind == "echo":
            return argument
        if kind == "say":
            print(argument, flush=True)
            return argument
        if kind == "setup":
            return setup
        if kind == "pid":
            return os.getpid()
        if kind == "jobs so far":
            return state["jobs"]
        if kind == "environment":
            return os.environ.get(str(argument))
        if kind == "pid and environment":
            return os.getpid(), os.environ.get(str(argument))
        if kind == "aborts for lack of memory":
            print("Unable to allocate memory", flush=True)
            os.abort()
        if kind == "allocate":
            return len(bytearray(int(str(argument))))
        if kind == "big":
            return b"x" * int(str(argument))
        if kind == "sleep":
            time.sleep(float(str(argument)))
            return argument
        if kind == "unpicklable":
            return lambda: argument
        if kind == "fault":
            raise ZeroDivisionError("a fault of our own")
        if kind == "exit outside":
            sys.exit(4)
        if kind == "idle death":
            subprocess.Popen(["sh", "-c", f"sleep 0.2; kill -9 {os.getpid()}"])
            return os.getpid()
        if kind == "steps":
            for _ in range(5):
                phase("step", 30)
                phase(None, None)
            return "stepped"
        phase("vjp", float(argument) if isinstance(argument, (int, float)) else 30.0)
        if kind == "hang":
            time.sleep(1000)
        elif kind == "hang with the lock":
            ctypes.PyDLL(None).sleep(1000)
        elif kind == "segfault":
            ctypes.string_at(0)
        elif kind == "_exit":
            os._exit(3)
        elif kind == "sys.exit":
            sys.exit(3)
        elif kind == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        elif kind == "raise in kernel":
            raise ValueError("T must be a multiple of 16, got 7")
        elif kind == "close everything":
            os.closerange(0, 64)
            time.sleep(1000)
        elif kind == "print":
            os.write(1, b"written to descriptor 1\n")
            os.write(2, b"written to descriptor 2\n")
            print("printed", flush=True)
            os._exit(5)
        elif kind == "fork":
            if os.fork() == 0:
                time.sleep(1000)  # keeps the inherited end of the socket open
            os._exit(7)
        elif kind == "print without end":
            until = time.monotonic() + 2.0
            while time.monotonic() < until:
                os.write(1, b"x" * 65536)
            os.write(1, b"the end")
            os._exit(8)
        elif kind == "grandchild":
            marker = subprocess.Popen(["sleep", "1000"])
            with open(str(argument), "w") as file:
                file.write(str(marker.pid))
            os._exit(6)
        phase(None, None)
        return "survived"

    return work
