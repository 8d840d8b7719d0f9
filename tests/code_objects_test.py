#!/usr/bin/env python3
# SPDX-FileCopyrightText: hipmla contributors
# SPDX-License-Identifier: MIT
"""Reads the AMD code objects in a built library, prints what each kernel uses, and fails if a kernel spills
registers, needs scratch memory or more LDS than the device has, or if a processor has no kernel.

usage: code_objects_test.py LIBRARY --processors gfx90a gfx942 --readobj llvm-readobj [--demangler c++filt]
"""

import argparse
import re
import struct
import subprocess
import sys
import tempfile

BUNDLE_MAGIC = b"__CLANG_OFFLOAD_BUNDLE__"
COMPRESSED_MAGIC = b"CCOB"
LDS_BYTES = {"gfx950": 160 * 1024}  # of one workgroup; others have 64 KiB
FIELDS = {  # column: key in the kernel's metadata
    "VGPR": ".vgpr_count",  # of both register files
    "AGPR": ".agpr_count",
    "SGPR": ".sgpr_count",
    "LDS": ".group_segment_fixed_size",  # without what a launch adds
    "scratch": ".private_segment_fixed_size",
    "VGPR spills": ".vgpr_spill_count",
    "SGPR spills": ".sgpr_spill_count",
}


def code_objects(data):
    """Yields (processor, code object) of each bundle in `data`, the bytes of a library or an archive.

    A bundle is its magic, a count, and for each entry offset, size, length of the name (all u64, little-endian) and
    the name, such as "hipv4-amdgcn-amd-amdhsa--gfx942"; offsets count from the magic.
    """
    start = data.find(BUNDLE_MAGIC)
    while start >= 0:
        position = start + len(BUNDLE_MAGIC)
        (count,) = struct.unpack_from("<Q", data, position)
        position += 8
        for _ in range(count):
            offset, size, name_length = struct.unpack_from("<QQQ", data, position)
            position += 24
            name = data[position : position + name_length].decode()
            position += name_length
            if name.startswith("hip") and size > 0:
                processor = name.rsplit("-", 1)[1].split(":")[0]
                yield processor, data[start + offset : start + offset + size]
        start = data.find(BUNDLE_MAGIC, position)


def kernels(code_object, readobj):
    """Returns the metadata of each kernel as a dictionary of strings."""
    with tempfile.NamedTemporaryFile(suffix=".co") as file:
        file.write(code_object)
        file.flush()
        notes = subprocess.run(
            [readobj, "--notes", file.name], check=True, capture_output=True, text=True
        ).stdout
    found = []
    in_kernels = False
    for line in notes.splitlines():
        top_level = re.match(r"^\s{0,2}(\S+):", line)
        if top_level:
            in_kernels = top_level.group(1) == "amdhsa.kernels"
        elif in_kernels:
            if re.match(r"^  - ", line):
                found.append({})
            field = re.match(r"^(?:  - |    )(\.\w+):\s+(\S+)\s*$", line)
            if field:
                found[-1][field.group(1)] = field.group(2).strip("'\"")
    return found


def demangle(names, demangler):
    if not demangler or not names:
        return names
    output = subprocess.run(
        [demangler], input="\n".join(names), check=True, capture_output=True, text=True
    ).stdout
    noise = r"^void |\(anonymous namespace\)::|hipmla::|internal::|device::|\([^()]*\)( \[clone .*)?$"
    return [re.sub(noise, "", line) for line in output.splitlines()]


def natural_order(text):
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", text)]


def problems(kernel, processor, allow_register_moves):
    lds_limit = LDS_BYTES.get(processor, 64 * 1024)
    # Without scratch, spilled VGPRs are in accumulation registers: moves, no memory.
    in_registers = allow_register_moves and not kernel["scratch"]
    if kernel["SGPR spills"] or (kernel["VGPR spills"] and not in_registers):
        yield "spills registers"
    if kernel["scratch"]:
        yield f"needs {kernel['scratch']} bytes of scratch per lane"
    if kernel["dynamic stack"]:
        yield "needs a stack of unknown size"
    if kernel["LDS"] > lds_limit:
        yield f"needs {kernel['LDS']} bytes of LDS; the device has {lds_limit}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("library")
    parser.add_argument("--processors", nargs="+", required=True)
    parser.add_argument("--readobj", required=True)
    parser.add_argument("--allow-register-moves", action="store_true",
                        help="accept VGPRs that spill to accumulation registers, without scratch")
    parser.add_argument("--demangler")
    args = parser.parse_args()

    with open(args.library, "rb") as file:
        data = file.read()

    rows = []
    for processor, code_object in code_objects(data):
        for metadata in kernels(code_object, args.readobj):
            row = {column: int(metadata[key]) for column, key in FIELDS.items()}
            row["kernel"] = metadata[".name"]
            row["processor"] = processor
            row["dynamic stack"] = metadata.get(".uses_dynamic_stack") == "true"
            rows.append(row)
    for row, name in zip(rows, demangle([row["kernel"] for row in rows], args.demangler)):
        row["kernel"] = name
    rows.sort(key=lambda row: (natural_order(row["kernel"]), row["processor"]))

    width = max([len(row["kernel"]) for row in rows], default=6)
    columns = ["processor", *FIELDS]
    print("  ".join(["kernel".ljust(width), *columns]))
    failures = []
    for row in rows:
        cells = [str(row[column]).rjust(len(column)) for column in columns]
        print("  ".join([row["kernel"].ljust(width), *cells]))
        failures += [f"{row['kernel']} on {row['processor']} {problem}"
                     for problem in problems(row, row["processor"], args.allow_register_moves)]

    for processor in args.processors:
        if not any(row["processor"] == processor for row in rows):
            failures.append(f"no kernel for {processor}")
    if failures and COMPRESSED_MAGIC in data:
        failures.append("the library may hold compressed code objects, which this check cannot read: build with "
                        "--no-offload-compress")
    print(f"\n{len(rows)} kernels, {len(failures)} problems")
    for failure in failures:
        print("FAILED:", failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
