#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""An unmodified llama.cpp with the plug-in, on the emulated board.

Usage: plugin.py PROGRAMS PLUGIN ORK MODEL TEXT [STEP...]

PROGRAMS is the folder of llama.cpp's programs (scripts/stock-llama), PLUGIN the library, ORK the program, MODEL a GGUF file,
TEXT a text of at least 512 tokens. Steps: refused, ops, bench, perplexity, pack, server, rpc; all of them by default.
"""

import concurrent.futures
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

# Fewest cases of ggml's backend test that must be claimed, and pass. What is declined is neither passed nor failed there, so
# that a device that declines everything passes, too.
CLAIMED_MIN = {"MUL_MAT": 1900, "MUL_MAT_ID": 900}
# Cases whose weights take ggml itself minutes to make; the rest covers their shapes.
TOO_LARGE = r"(n_mats=(128,n_used=4|512|1024)|m=2880)"


class Failed(Exception):
    pass


def environment(plugin, **settings):
    env = {name: value for name, value in os.environ.items() if not name.startswith("ORK_")}
    env.update(GGML_BACKEND_PATH=plugin, OMP_WAIT_POLICY="passive", ORK_DEVICE__KIND="sim")
    env.update(settings)
    return env


def run(command, env, timeout=900):
    """The program's output; both streams of a failed one are shown."""
    done = subprocess.run(command, env=env, timeout=timeout, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise Failed(f"{' '.join(command)} ended with {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return done.stdout, done.stderr


def executed(report):
    """Products that a report counts."""
    found = re.search(r"executed +(\d+) matmuls.* (\d+) in software, (\d+) failed", report)
    if not found:
        raise Failed(f"no report of the plug-in in:\n{report[-4000:]}")
    products, software, failed = map(int, found.groups())
    if software or failed:
        raise Failed(f"{software} products in software, {failed} failed:\n{report[-4000:]}")
    return products


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def read(log):
    log.seek(0)
    return log.read()


def wait_until_open(port, process, log):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise Failed(f"nobody listens on port {port}:\n{read(log)[-4000:]}")


class Stock:
    def __init__(self, programs, plugin, ork, model, text):
        self.programs, self.plugin, self.ork = programs, os.path.abspath(plugin), os.path.abspath(ork)
        self.model, self.text = model, text
        self.threads = str(min(4, os.cpu_count() or 1))

    def program(self, name):
        return os.path.join(self.programs, name)

    def refused(self):
        """What cannot work says so, and the program goes on without the NPU."""
        command = [self.program("llama-bench"), "--list-devices"]
        for settings, wanted in [
            ({"ORK_OFFLOAD__ROUT": "npu"}, "no option offload.rout; did you mean offload.route?"),
            ({"ORK_DEVICE__CORES": "many"}, "device.cores"),
            ({"ORK_CONFIG": "/nowhere/ork.toml"}, "cannot read the configuration file /nowhere/ork.toml"),
        ]:
            _, err = run(command, environment(self.plugin, **settings))
            if f"ork: the settings are wrong: " not in err or wanted not in err:
                raise Failed(f"{settings}: no word of {wanted!r} in:\n{err}")
        _, err = run(command, environment(self.plugin, ORK_DEVICE__KIND="rknpu", ORK_DEVICE__DEV_ROOT="/nowhere"))
        if "not supported on this system" not in err:
            raise Failed(f"a board that is not there was promised:\n{err}")

    def ops(self):
        env = environment(
            self.plugin,
            ORK_OFFLOAD__FOREIGN_WEIGHTS="pack_per_call",
            ORK_OFFLOAD__MIN_ROWS="1",
            ORK_PLUGIN__REPORT="summary",
        )

        def test(op, least):
            start = time.monotonic()
            command = [self.program("test-backend-ops"), "test", "-b", "ORK", "-o", op]
            out, err = run([*command, "-p", f"^(?!.*{TOO_LARGE})"], env, timeout=3600)
            passed, tests = map(int, re.search(r"(\d+)/(\d+) tests passed", out).groups())
            declined = len(re.findall(r"not supported \[", out))
            seconds = time.monotonic() - start
            print(f"{op}: {passed} of {tests} claimed cases pass, {declined} declined, {seconds:.0f} s")
            if passed != tests or passed < least:
                wrong = [line for line in out.splitlines() if "FAIL" in line]
                raise Failed("\n".join([f"{op}: at least {least} cases must be claimed and pass", *wrong[:20]]))
            if executed(err) < passed:
                raise Failed(f"{op}: fewer products than cases:\n{err[-2000:]}")

        # Side by side: a run is busy on one thread nearly all the time.
        with concurrent.futures.ThreadPoolExecutor() as pool:
            for done in [pool.submit(test, op, least) for op, least in CLAIMED_MIN.items()]:
                done.result()

    def bench(self):
        env = environment(self.plugin, ORK_OFFLOAD__ROUTE="npu", ORK_PLUGIN__REPORT="table")
        command = [self.program("llama-bench"), "-m", self.model, "-t", self.threads]
        out, err = run([*command, "-p", "128", "-n", "4", "-r", "1", "-o", "json"], env)
        rows = json.loads(out)
        speeds = [f"{'prefill' if row['n_prompt'] else 'decode'} {row['avg_ts']:.1f} tokens/s" for row in rows]
        # A warm-up and a measured run of each: 30 layers of 7 products, and the output.
        least = 30 * 7 * (1 + 4)
        if len(rows) != 2 or executed(err) < least or "blk.*.ffn_down.weight" not in err:
            raise Failed(f"llama-bench: {rows}\n{err[-4000:]}")
        print(f"llama-bench: {', '.join(speeds)}; {executed(err)} products")

    def perplexity_of(self, *options, model=None, **settings):
        env = environment(self.plugin, **settings)
        command = [self.program("llama-perplexity"), "-m", model or self.model, "-f", self.text, "-t", self.threads]
        out, err = run([*command, "-c", "256", "--chunks", "2", *options], env)
        estimate = re.search(r"Final estimate: PPL = ([0-9.]+)", out + err)
        if not estimate:
            # It ends with 0 although a graph failed.
            raise Failed(f"no estimate:\n{err}")
        return float(estimate.group(1)), err

    def perplexity(self):
        """The plug-in's figure against that of `ork`, which has the same backend in its own llama.cpp.

        With the same instructions of the CPU they are the same number: everything that the NPU adds up is exact. With others, the
        CPU's rounding moves what is quantised, and on a text as short as this the figures are a percent apart.
        """
        out, err = run(
            [
                *[self.ork, "ppl", "-m", self.model, "-f", self.text, "--part", "whole", "--route", "npu"],
                *["--device", "sim", "--windows", "2", "--context", "256", "--threads", self.threads],
            ],
            environment(self.plugin),
        )
        inside = float(re.search(r"PPL ([0-9.]+)", err + out).group(1))
        outside, err = self.perplexity_of(ORK_OFFLOAD__ROUTE="npu", ORK_PLUGIN__REPORT="summary")
        print(f"perplexity: ork {inside:.4f}, llama-perplexity with the plug-in {outside:.4f}, {executed(err)} products")
        if executed(err) < 400 or not abs(outside / inside - 1) < 0.005:
            raise Failed("the perplexities are more than 0.5 % apart")

    def pack(self):
        """Packs beside the model, used and refused."""
        settings = {"ORK_OFFLOAD__ROUTE": "npu", "ORK_PLUGIN__REPORT": "summary"}
        converted, _ = self.perplexity_of(**settings)
        with tempfile.TemporaryDirectory() as folder:
            model, pack = os.path.join(folder, "m.gguf"), os.path.join(folder, "m.orkpack")
            # No link: the plug-in learns from the mapping which file it is.
            shutil.copyfile(self.model, model)
            figures = {}
            # The bits that converting gives; and others, which are seen to be others.
            for scheme in ["w8a8", "i4a8+group"]:
                make = [self.ork, "pack", "-m", model, "-o", pack, "--scheme", scheme]
                run(make, environment(self.plugin))
                figures[scheme], err = self.perplexity_of(model=model, ORK_OFFLOAD__PACK="require", **settings)
                found = re.search(r"packs +(\d+) x (\S+) from a pack, (\d+) converted", err)
                if not found or int(found[1]) < 200 or found[2] != scheme or found[3] != "0" or executed(err) < 400:
                    raise Failed(f"{scheme}: the pack was not used:\n{err[-4000:]}")
                os.remove(pack)
            print(f"packs: converted {converted:.4f}, {figures}")
            if figures["w8a8"] != converted or not 0 < abs(figures["i4a8+group"] / converted - 1) < 0.2:
                raise Failed("a pack of w8a8 gives what converting gives, and one of four bits something near it")
            # None where one must be, and one of another model: the model is not loaded.
            other = os.path.join(folder, "other.gguf")
            with open(self.model, "rb") as source, open(other, "wb") as target:
                target.write(source.read()[:-1] + b"\0")
            run([self.ork, "pack", "-m", other, "-o", pack, "--scheme", "w8a8"], environment(self.plugin))
            for choice, path, wanted in [("auto", pack, "m.orkpack is of model"), ("require", None, "there is no pack")]:
                if not path:
                    os.remove(pack)
                try:
                    self.perplexity_of(model=model, ORK_OFFLOAD__PACK=choice, **settings)
                except Failed as failure:
                    if wanted not in str(failure):
                        raise Failed(f"{choice}: no word of {wanted!r} in:\n{failure}") from None
                else:
                    raise Failed(f"{choice}: the model was loaded")
            # A weight that cannot be loaded is not told to llama.cpp, so that the first graph has to fail. With the file mapped, the
            # pack lacks one; without, the pack cannot be known.
            weight = "blk.3.ffn_up.weight"
            make = [self.ork, "pack", "-m", model, "-o", pack, "--scheme", "w8a8"]
            run(make, environment(self.plugin, ORK_OFFLOAD__EXCLUDE=f'["{weight}"]'))
            for route, options, wanted in [
                ("npu", [], f"cannot multiply by {weight}, which was not loaded"),
                ("auto", [], f"cannot multiply by {weight}, which was not loaded"),
                ("npu", ["--load-mode", "none"], "is not from a mapped file, so its pack cannot be found"),
            ]:
                settings = {"ORK_OFFLOAD__ROUTE": route, "ORK_OFFLOAD__PACK": "require"}
                try:
                    self.perplexity_of(*options, model=model, **settings)
                except Failed as failure:
                    if wanted not in str(failure):
                        raise Failed(f"{settings} {options}: no word of {wanted!r} in:\n{failure}") from None
                else:
                    raise Failed(f"{settings} {options}: a perplexity of a model without a weight")

    def server(self):
        """Several slots at once, then the end that a service manager asks for."""
        port = free_port()
        command = [self.program("llama-server"), "-m", self.model, "-t", self.threads, "--port", str(port)]
        env = environment(self.plugin, ORK_OFFLOAD__MIN_ROWS="8", ORK_PLUGIN__REPORT="summary")
        server = subprocess.Popen(
            [*command, "-c", "1024", "-np", "2"], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        lines = []
        reader = threading.Thread(target=lambda: lines.extend(server.stdout), daemon=True)
        reader.start()
        try:
            self.wait_until_healthy(server, port, lines)
            answers = [None, None]

            def ask(slot, prompt):
                body = {"prompt": prompt, "n_predict": 8, "temperature": 0, "cache_prompt": False}
                request = urllib.request.Request(
                    f"http://127.0.0.1:{port}/completion",
                    json.dumps(body).encode(),
                    {"Content-Type": "application/json"},
                )
                with urllib.request.urlopen(request, timeout=300) as reply:
                    answers[slot] = json.load(reply)

            prompts = [
                "The capital of France is the city of Paris, and the capital of Italy is the city of",
                "One, two, three, four, five, six, seven, eight, nine, ten, eleven,",
            ]
            threads = [threading.Thread(target=ask, args=pair) for pair in enumerate(prompts)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(timeout=60)
            reader.join(timeout=60)
        texts = [answer and answer.get("content") for answer in answers]
        log = "".join(lines)
        print(f"llama-server: {texts}; {executed(log)} products")
        if not texts[0] or "Rome" not in texts[0] or not texts[1] or "twelve" not in texts[1].lower():
            raise Failed(f"llama-server answered {texts}\n{log[-4000:]}")

    def rpc(self):
        """llama.cpp's own RPC: two nodes with an NPU each, half of the layers on each, and a client without one."""
        env = environment(
            self.plugin, ORK_OFFLOAD__ROUTE="npu", ORK_PLUGIN__NODE="true", ORK_PLUGIN__LOG="debug", RUST_BACKTRACE="0"
        )
        nodes, ports = [], [free_port(), free_port()]
        try:
            for port in ports:
                command = [self.program("ggml-rpc-server"), "-p", str(port), "-t", self.threads]
                log = tempfile.TemporaryFile("w+")
                nodes.append((subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT), log))
            for port, (node, log) in zip(ports, nodes):
                wait_until_open(port, node, log)
            addresses = ",".join(f"127.0.0.1:{port}" for port in ports)
            options = ["--rpc", addresses, "-ngl", "99"]
            through, _ = self.perplexity_of(*options, GGML_BACKEND_PATH="", ORK_OFFLOAD__ROUTE="cpu")
        finally:
            for node, _ in nodes:
                node.terminate()
                node.wait(timeout=60)
        logs = [read(log) for _, log in nodes]
        products = [len(re.findall(r"matmul weight=", log)) for log in logs]
        direct, _ = self.perplexity_of(ORK_OFFLOAD__ROUTE="npu")
        print(f"RPC: perplexity {through:.4f} with {products} products on two nodes, {direct:.4f} without RPC")
        if min(products) < 100:
            raise Failed(f"a node's NPU had next to nothing to do:\n{logs[0][-2000:]}\n{logs[1][-2000:]}")
        # The same program on the same CPU: what is added up is the same wherever it is.
        if through != direct:
            raise Failed("the perplexities are not the same")

    @staticmethod
    def wait_until_healthy(server, port, lines):
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline and server.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as reply:
                    if reply.status == 200:
                        return
            except OSError:
                time.sleep(0.2)
        raise Failed(f"llama-server did not come up:\n{''.join(lines)[-4000:]}")


def main():
    programs, plugin, ork, model, text, *steps = sys.argv[1:]
    stock = Stock(programs, plugin, ork, model, text)
    for step in steps or ["refused", "ops", "bench", "perplexity", "pack", "server", "rpc"]:
        try:
            getattr(stock, step)()
        except Failed as failure:
            print(f"{step}: {failure}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
