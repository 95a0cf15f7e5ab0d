# SPDX-License-Identifier: MIT OR Apache-2.0
"""An int8 product on the mainline driver with fcntl and mmap. Exits with 0 when the result is right."""
import ctypes
import fcntl
import glob
import mmap
import os
import struct
import sys
import time

import matmul

CREATE_BO = 3 << 30 | 24 << 16 | ord("d") << 8 | 0x40
SUBMIT = 1 << 30 | 24 << 16 | ord("d") << 8 | 0x41
PREP_BO = 1 << 30 | 16 << 16 | ord("d") << 8 | 0x42
FINI_BO = 1 << 30 | 8 << 16 | ord("d") << 8 | 0x43

path = sorted(glob.glob("/dev/accel/accel*"))[0]
fd = os.open(path, os.O_RDWR)


def bo(size):
    made = bytearray(struct.pack("<IIQQ", size, 0, 0, 0))
    fcntl.ioctl(fd, CREATE_BO, made)
    _, handle, dma_address, offset = struct.unpack("<IIQQ", made)
    cpu = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE, offset=offset)
    return cpu, handle, dma_address


def fini(handle):
    fcntl.ioctl(fd, FINI_BO, struct.pack("<II", handle, 0))


a, a_handle, a_addr = bo(matmul.M * matmul.K)
b, b_handle, b_addr = bo(matmul.K * matmul.N)
c, c_handle, c_addr = bo(4 * matmul.M * matmul.N)
regcmd, regcmd_handle, regcmd_addr = bo(4096)
assert a_addr == 0

text = matmul.program(a_addr, b_addr, c_addr)
regcmd[: len(text)] = text
a[:] = matmul.features()
b[:] = matmul.weights()
for handle in (regcmd_handle, a_handle, b_handle, c_handle):
    fini(handle)

tasks = ctypes.create_string_buffer(struct.pack("<II", regcmd_addr, len(text) // 8), 8)
ins = ctypes.create_string_buffer(struct.pack("<I", a_handle), 4)
outs = ctypes.create_string_buffer(struct.pack("<I", c_handle), 4)
address = ctypes.addressof
jobs = ctypes.create_string_buffer(struct.pack("<QQQIIII", address(tasks), address(ins), address(outs), 1, 8, 1, 1), 40)
fcntl.ioctl(fd, SUBMIT, struct.pack("<QIIQ", address(jobs), 1, 40, 0))
fcntl.ioctl(fd, PREP_BO, struct.pack("<IIq", c_handle, 0, time.monotonic_ns() + 6_000_000_000))
wrong = matmul.wrong_results(c[:])
print(f"{path}: matmul {matmul.M}x{matmul.K}x{matmul.N}: {wrong} of {matmul.M * matmul.N} wrong")
sys.exit(wrong != 0)
