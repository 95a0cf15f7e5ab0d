# SPDX-License-Identifier: MIT OR Apache-2.0
"""An int8 product on the vendor driver with fcntl and mmap. Exits with 0 when the result is right."""
import fcntl
import glob
import mmap
import os
import struct
import subprocess
import sys

import matmul

IOWR = 3 << 30 | ord("d") << 8
ACTION = IOWR | 8 << 16 | 0x40
SUBMIT = IOWR | 104 << 16 | 0x41
MEM_CREATE = IOWR | 40 << 16 | 0x42  # the struct of older headers
MEM_MAP = IOWR | 16 << 16 | 0x43
MEM_DESTROY = IOWR | 16 << 16 | 0x44

assert glob.glob("/dev/dri/card*") == ["/dev/dri/card1"], glob.glob("/dev/dri/*")
assert b"rockchip,rk3588" in open("/proc/device-tree/compatible", "rb").read().split(b"\0")
fd = os.open("/dev/dri/card1", os.O_RDWR)


def buffer(size, flags):
    made = bytearray(struct.pack("<IIQQQQ", 0, flags, size, 0, 0, 0))
    fcntl.ioctl(fd, MEM_CREATE, made)
    handle, _, size, obj_addr, dma_addr, _ = struct.unpack("<IIQQQQ", made)
    place = bytearray(struct.pack("<IIQ", handle, 0, 0))
    fcntl.ioctl(fd, MEM_MAP, place)
    offset = struct.unpack("<IIQ", place)[2]
    cpu = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE, offset=offset)
    return cpu, obj_addr, dma_addr


tasks, tasks_obj, _ = buffer(65536, 8)
regcmd, _, regcmd_addr = buffer(524288, 0)
a, _, a_addr = buffer(4 << 20, 0)
b, _, b_addr = buffer(4 << 20, 0)
c, _, c_addr = buffer(4 << 20, 0)

text = matmul.program(a_addr, b_addr, c_addr)
regcmd[: len(text)] = text
a[: matmul.M * matmul.K] = matmul.features()
b[: matmul.K * matmul.N] = matmul.weights()
words = len(text) // 8 - matmul.TRAILER_WORDS
tasks[:40] = struct.pack("<8IQ", 0, 0, 0xD, 0x300, 0x1FFFF, 0, words, 0, regcmd_addr)

# A child that inherits nothing, started while the device is open.
assert subprocess.run([sys.executable, "-c", "print(6 * 7)"], capture_output=True).stdout == b"42\n"

submit = bytearray(struct.pack("<5IiQIIQqIi10I", 5, 6000, 0, 1, 0, 0, tasks_obj, 0, 0, 0, 0, 1, -1, 0, 1, 1, 0, 1, 0, 0, 0, 0, 0))
fcntl.ioctl(fd, SUBMIT, submit)
try:
    fcntl.ioctl(fd, MEM_DESTROY, struct.pack("<IIQ", 77, 0, 0))
    sys.exit("an unknown handle was accepted")
except OSError as error:
    assert error.errno == 22
wrong = matmul.wrong_results(c[: 4 * matmul.M * matmul.N])
print(f"matmul {matmul.M}x{matmul.K}x{matmul.N}: {wrong} of {matmul.M * matmul.N} wrong")
sys.exit(wrong != 0)
