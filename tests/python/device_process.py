"""usage: device_process.py [PART OF A NAME...]

What concerns whole processes: errors that name the program's line, Ctrl-C, fork, the end of a program, import, two programs at
once on one worker, and a slow link. Each check runs programs of its own."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time
from typing import Any

import devicetest
from devicecluster import Cluster, Proxy

LIMIT_S = 600  # of one program: a loaded machine takes half a minute for `import torch`


def run(program: str, *words: str, address: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program's text; its file is program.py in a folder of its own."""
    process = start(program, *words, address=address, **environment)
    out, err = process.communicate(timeout=LIMIT_S)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def start(program: str, *words: str, address: str = "", **environment: str) -> subprocess.Popen[str]:
    folder = pathlib.Path(os.environ["DT_TEST_FOLDER"])
    path = folder / f"program{len(list(folder.iterdir()))}.py"
    path.write_text(textwrap.dedent(program))
    extra = {"DTORCH_ADDRESS": address} if address else {}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, str(path), *words], stdin=pipe, stdout=pipe, stderr=pipe, text=True,
                            env=os.environ | extra | environment)


def expect(result: subprocess.CompletedProcess[str], *texts: str, status: int = 0) -> None:
    said = result.stdout + result.stderr
    assert result.returncode == status, f"ends with {result.returncode}: {said[-600:]}"
    for text in texts:
        assert text in said, f"does not say {text!r}: {said[-800:]}"


# ---- the least program ----


def import_is_enough() -> None:
    expect(run("import torch\nprint(torch.ones(3, device='dtorch') * 2)"), "tensor([2., 2., 2.], device='dtorch:0')")


def dtorch_may_come_first() -> None:
    expect(run("import dtorch, torch\nprint(dtorch.fetch(torch.ones(2, device='dtorch')).result(60))"), "tensor([1., 1.])")


def can_be_switched_off() -> None:
    expect(run("import torch\ntry: torch.ones(2, device='dtorch')\nexcept RuntimeError: print('no such device')",
               TORCH_DEVICE_BACKEND_AUTOLOAD="0"), "no such device")


def import_connects_to_nothing() -> None:
    expect(run("import torch, dtorch\nassert not torch.dtorch.is_initialized() and dtorch.session_info() == {}\n"
               "torch.manual_seed(3)\nprint('idle', torch.dtorch.device_count())", address="/nonexistent/socket"), "idle 1")


def an_address_without_a_cluster_is_an_error_at_the_first_use() -> None:
    result = run("""\
        import torch, dtorch
        dtorch.configure(address="/nonexistent/socket", connect_timeout=1)
        try:
            torch.ones(2, device="dtorch")
        except dtorch.Error as error:
            print("refused:", type(error).__name__, error)
        """)
    expect(result, "refused:", "/nonexistent/socket")


# ---- errors ----

LATE = """\
    import torch, dtorch
    x = torch.randn(5, 3, device="dtorch")
    ids = torch.tensor([1, 9], device="dtorch")
    def look_up(table, which):
        return torch.nn.functional.embedding(which, table)  # the line
    def program():
        y = look_up(x, ids)
        z = (y * 2).sum()
        return z
    z = program()
    w = x.sum()
    try:
        z.item()
    except IndexError as error:
        assert isinstance(error, dtorch.OperatorError), type(error).__mro__
        print(str(error))
        print("place:", error.place, "operator:", error.operator, "inputs:", error.inputs, "vdev:", error.vdev)
    print("goes on:", w.item() == x.cpu().sum().item() or float(w), (x + 1).sum().item() is not None)
"""


def late_errors_name_the_line() -> None:
    result = run(LATE)
    expect(result, "index out of range", "operator: aten::embedding(float32 (5, 3), int64 (2,))", "program", ".py:5 in look_up",
           "device: dtorch:0, which is device 0 of node ", "goes on: ")


def errors_within_modules_name_the_line_that_calls() -> None:
    result = run("""\
        import torch, dtorch
        table = torch.nn.Embedding(4, 2).to("dtorch")
        with torch.profiler.record_function("outer"), torch.profiler.record_function("inner"):
            y = table(torch.tensor([7], device="dtorch"))  # line 4
        try:
            print(y.cpu())
        except IndexError as error:
            print(error.place, error.ranges)
        """)
    expect(result, ".py:4 in <module>", "outer", "inner")


def errors_of_backward_are_raised_too() -> None:
    result = run("""\
        import torch, dtorch
        scores = torch.randn(3, 4, device="dtorch", requires_grad=True)
        loss = torch.nn.functional.nll_loss(scores, torch.tensor([0, 1, 8], device="dtorch"))
        loss.backward()
        try:
            scores.grad.sum().item()
        except (IndexError, RuntimeError) as error:
            print("raised:", type(error).__name__, error)
        """)
    expect(result, "raised:", "nll_loss", ".py:3 in <module>")


def an_error_that_nobody_asks_for_is_told_at_the_end() -> None:
    expect(run("""\
        import torch
        torch.zeros(2, device="dtorch").index_select(0, torch.tensor([5], device="dtorch"))
        """), "never asked for", "index_select")


def errors_pickle_and_print() -> None:
    expect(run(LATE.replace('print(str(error))', 'import pickle, traceback; traceback.print_exc(); pickle.loads(pickle.dumps(error))')),
           "goes on: ", "OperatorIndexError")


def memory_ends_with_pytorchs_error() -> None:
    expect(run("""\
        import torch, dtorch
        dtorch.configure(memory_limit=64 << 20)
        a = torch.ones(1 << 20, device="dtorch")
        try:
            b = torch.ones(1 << 26, device="dtorch")
            print(b.sum().item())
        except torch.OutOfMemoryError as error:
            print("refused:", type(error).__name__, str(error)[:300])
        print("goes on", (a + 1).sum().item())
        for _ in range(200):  # what is freed is there again, without a wait
            b = a * 2
            del b
        print("and on", (a + 2).sum().item())
        """), "refused: OperatorOutOfMemoryError", "goes on 2097152.0", "and on 3145728.0")


# ---- signals, fork, the end ----


def wait_until_asleep(pid: int) -> None:
    """Until the main thread of a program waits for something, or the program is over."""
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        try:
            state = pathlib.Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return
        if state != "R":
            return
        time.sleep(0.01)


def ctrl_c_leaves_a_wait() -> None:
    process = start("""\
        import signal, time, torch
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
        x = torch.randn(1500, 1500, device="dtorch") * 0.026  # powers stay normal numbers
        (x @ x).sum().item()
        y = x
        for _ in range(400):
            y = y @ x
        try:
            print("waiting", flush=True)
            y.sum().item()
            print("too fast", flush=True)
        except KeyboardInterrupt:
            print("left", flush=True)
        print("usable:", torch.ones(2).sum().item(), flush=True)
        small = torch.ones(3, device="dtorch")
        del x, y
        import os; os._exit(0)
        """)
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n", process.communicate()[1][-400:]
    wait_until_asleep(process.pid)
    process.send_signal(signal.SIGINT)
    said = process.stdout.readline()
    out = process.stdout.read()  # not communicate(): that does not see what was read ahead
    _, err = process.communicate(timeout=LIMIT_S)
    assert said in ("left\n", "too fast\n"), said + out + err[-500:]
    if said == "too fast\n":
        raise devicetest.Skip("the device was done before the signal came")
    assert "usable: 2.0" in out, out


def a_session_is_usable_after_ctrl_c() -> None:
    expect(run("""\
        import os, signal, threading, torch
        signal.signal(signal.SIGINT, signal.default_int_handler)
        x = torch.randn(900, 900, device="dtorch") * 0.01
        x.sum().item()
        y = x
        for _ in range(40):
            y = y @ x
        try:
            threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            y.sum().item()
            import time; time.sleep(600)
        except KeyboardInterrupt:
            print("left")
        print("sum", (torch.ones(3, device="dtorch") + 1).sum().item(), y.sum().isfinite().item())
        """), "left", "sum 6.0")


def a_forked_child_is_told() -> None:
    expect(run("""\
        import os, torch, dtorch
        x = torch.ones(3, device="dtorch")
        print("parent", x.sum().item(), flush=True)
        if os.fork() == 0:
            assert torch.dtorch._is_in_bad_fork()
            for what in (lambda: x + 1, lambda: torch.ones(2, device="dtorch"), lambda: x.cpu()):
                try:
                    what()
                    print("nothing raised", flush=True)
                except dtorch.Error as error:
                    print("child:", type(error).__name__, str(error)[:80], flush=True)
            torch.ones(2) + 1
            torch.manual_seed(3)
            os._exit(0)
        os.wait()
        print("parent still", (x + 1).sum().item())
        """), "child: ForkedError", "parent still 6.0")


def a_fork_before_the_first_use_is_fine() -> None:
    expect(run("""\
        import os, torch
        if os.fork() == 0:
            print("child", torch.ones(3, device="dtorch").sum().item(), flush=True)
            import sys; sys.exit(0)
        os.wait()
        print("parent", torch.ones(2, device="dtorch").sum().item())
        """), "child 3.0", "parent 2.0")


def spawned_processes_have_their_own() -> None:
    expect(run("""\
        import torch, torch.multiprocessing as mp
        def work(i):
            print("worker", i, torch.full((2,), float(i), device="dtorch").sum().item(), flush=True)
        if __name__ == "__main__":
            torch.ones(1, device="dtorch").item()
            mp.spawn(work, nprocs=2)
        """), "worker 0 0.0", "worker 1 2.0")


def ends_with_things_alive() -> None:
    expect(run("""\
        import torch, threading, dtorch
        x = torch.randn(100, 100, device="dtorch", requires_grad=True)
        y = (x @ x).sum()
        f = dtorch.fetch(y)
        class Holds:
            def __init__(self): self.t = torch.ones(3, device="dtorch")
            def __del__(self): self.t + 1
        h = Holds(); h.me = h
        threading.Thread(target=lambda: [x * 2 for _ in range(10)]).start()
        print("last line")
        """), "last line")


def connects_again_after_disconnect() -> None:
    expect(run("""\
        import torch, dtorch
        dtorch.configure(private=True, program="first")
        a = torch.ones(2, device="dtorch")
        assert a.sum().item() == 2
        dtorch.disconnect()
        assert dtorch.session_info() == {}
        print("again", torch.ones(3, device="dtorch").sum().item())
        try:
            print(a.cpu())
        except dtorch.Error as error:
            print("gone:", error)
        """), "again 3.0", "gone: ")


def a_mesh_of_an_earlier_session_may_be_too_large() -> None:
    expect(run("""\
        import dtorch
        def total(mesh):
            return dtorch.ones((4, 3), device_mesh=mesh, placements=[dtorch.Shard(0)]).sum().item()
        dtorch.configure(devices=3)
        large, small = dtorch.DeviceMesh("cuda", [0, 1, 2]), dtorch.DeviceMesh("cuda", [0, 1])
        assert total(large) == total(small) == 12
        dtorch.disconnect()
        dtorch.configure(devices=2)
        print("fewer", total(small))
        try:
            total(large)
        except dtorch.BegunError as error:
            print("refused:", error)
        dtorch.disconnect()
        dtorch.configure(devices=3)
        print("more", total(large), total(small))
        """), "fewer 12.0", "refused: ", "device 2, and this session has 2", "more 12.0 12.0")


def several_device_indices() -> None:
    expect(run("""\
        import torch, dtorch
        dtorch.configure(devices=2)
        a, b = torch.ones(2, device="dtorch:0"), torch.ones(2, device="dtorch:1")
        c = a.to("dtorch:1") + b
        print(torch.dtorch.device_count(), c.device, c.tolist(), torch.dtorch.get_device_name(1))
        with torch.dtorch.device(1):
            print(torch.ones(1, device="dtorch").device)
        try:
            a + b
        except RuntimeError as error:
            print("refused:", str(error)[:100])
        """), "2 dtorch:1 [2.0, 2.0]", "dtorch:1\n", "refused:")


def each_device_has_its_random_numbers() -> None:
    """As with several CUDA devices: a seed for all or for one, a state for each; a mesh draws the same everywhere even so."""
    expect(run("""\
        import torch, dtorch
        dtorch.configure(devices=2)
        mesh = dtorch.DeviceMesh("dtorch", [0, 1])
        def cpu(seed, count, skip=0):
            return torch.rand(skip + count, generator=torch.Generator().manual_seed(seed))[skip:].tolist()
        def draw(index, count, **options):
            return torch.rand(count, device=f"dtorch:{index}", **options).tolist()
        torch.dtorch.manual_seed(8)  # of device 0, before there is a session
        assert draw(0, 3) == cpu(8, 3) and torch.dtorch.initial_seed() == 8
        torch.manual_seed(5)
        assert draw(0, 2) == draw(1, 2) == cpu(5, 2)
        with torch.dtorch.device(1):
            torch.dtorch.manual_seed(7)
            assert torch.dtorch.initial_seed() == 7
        assert draw(1, 2) == cpu(7, 2) and draw(0, 2) == cpu(5, 2, 2)
        states = torch.dtorch.get_rng_state_all()
        first = [draw(0, 3), draw(1, 3)]
        assert first[0] != first[1]
        torch.dtorch.set_rng_state_all(states)
        assert first == [draw(0, 3), draw(1, 3)]
        g = torch.Generator("dtorch:1").manual_seed(3)
        assert draw(1, 2, generator=g) == cpu(3, 2) and g.device == torch.device("dtorch:1")
        x = dtorch.ones((6,), device_mesh=mesh, placements=[dtorch.Replicate()])
        for _ in range(2):
            draw(1, 5)
            parts = list(torch.rand_like(x).shards().values())
            assert torch.equal(*parts), parts
            draw(0, 1)
            parts = list(torch.nn.functional.dropout(torch.bernoulli(x * 0.5), 0.5).shards().values())
            assert torch.equal(*parts), parts
        torch.manual_seed(9)
        parts = list(torch.rand_like(x).shards().values())
        assert torch.equal(*parts) and parts[0].tolist() == cpu(9, 6), parts
        print("all is so")
        """), "all is so")


# ---- clusters ----

TRAIN = """\
    import sys, time, torch, dtorch
    sys.path.insert(0, sys.argv[1])
    import gpt
    gpt.train("dtorch", 2)
    torch.dtorch.synchronize()
    began = time.perf_counter()
    before = dtorch.session_info()["waits"]
    losses, model = gpt.train("dtorch", int(sys.argv[2]))
    print("waits", dtorch.session_info()["waits"] - before)
    torch.dtorch.synchronize()
    print("seconds", time.perf_counter() - began)
    print("result", float(sum(loss.cpu().double() for loss in losses)), float(sum(p.double().sum() for p in model.parameters())))
"""
EXAMPLES = str(pathlib.Path(__file__).resolve().parents[2] / "client" / "python" / "examples")


def result_of(said: str) -> str:
    return next(line for line in said.splitlines() if line.startswith("result"))


def seconds_of(said: str) -> float:
    return float(next(line for line in said.splitlines() if line.startswith("seconds")).split()[1])


def two_programs_share_a_worker() -> None:
    with Cluster() as cluster:
        alone = run(TRAIN, EXAMPLES, "10", address=cluster.path)
        expect(alone, "result")
        pair = [start(TRAIN, EXAMPLES, "10", address=cluster.path) for _ in range(2)]
        for program in pair:
            out, err = program.communicate(timeout=LIMIT_S)
            assert program.returncode == 0 and result_of(out) == result_of(alone.stdout), out + err[-500:]


def a_slow_link_changes_nothing() -> None:
    """5 ms each way: the same is computed, and nothing is waited for; what that leaves of its speed is a figure of the benchmark."""
    with Cluster() as cluster:
        proxy = Proxy(cluster.port, 0.005)
        near = run(TRAIN, EXAMPLES, "30", address=f"127.0.0.1:{cluster.port}")
        far = run(TRAIN, EXAMPLES, "30", address=f"127.0.0.1:{proxy.port}")
        proxy.close()
    expect(near, "result", "waits 0\n")
    expect(far, "result", "waits 0\n")
    assert result_of(near.stdout) == result_of(far.stdout)
    ratio = seconds_of(far.stdout) / seconds_of(near.stdout)
    print(f"a program over a link of 5 ms each way takes {ratio:.2f} times as long ({seconds_of(far.stdout):.1f} s)")


def a_worker_holds_what_eager_would() -> None:
    """The worker's own count of a program's memory peaks within 5 % of eager's, and 64 KiB, on the training examples."""
    import device_train

    with Cluster() as cluster:
        for example in ("mlp", "gpt", "cnn"):
            process = start("""\
                import importlib, sys, torch, dtorch
                sys.path.insert(0, sys.argv[1])
                importlib.import_module(sys.argv[2]).train("dtorch", 3)
                torch.dtorch.synchronize()
                print("job", dtorch.session_info()["session"], dtorch.session_info()["operators"], flush=True)
                sys.stdin.readline()
                """, EXAMPLES, example, address=cluster.path)
            assert process.stdout is not None
            line = next((line for line in process.stdout if line.startswith("job ")), "")
            assert line, process.communicate()[1][-500:]
            number, issued = (int(word) for word in line.split()[1:])
            job: dict[str, Any] = {}

            def is_counted() -> bool:  # the worker tells its figures from time to time
                nonlocal job
                jobs = json.loads(cluster.ctl("job", "list", "-o", "json"))["items"]
                job = next(j for j in jobs if int(j["id"]) == number)
                return int(job["operators_executed"]) >= issued

            assert devicetest.becomes(is_counted), job
            process.kill()
            process.communicate()
            want, got = device_train.eager_peak(example), int(job["memory_peak_bytes"])
            print(f"{example}: the worker's peak is {got} bytes, eager's {want}: {got / want:.3f}")
            assert got <= want * 1.05 + 65536, f"{example}: {got} bytes, eager {want}"


def a_file_says_where() -> None:
    """client.conf, and DTORCH_ADDRESS before it."""
    with Cluster() as cluster:
        path = cluster.folder / "client.conf"
        path.write_text(f"[Client]\nAddress={cluster.path}\n")
        text = """\
            import torch, dtorch
            dtorch.configure(config_file={path!r})
            print("at", torch.ones(2, device="dtorch").sum().item(), torch.dtorch.get_device_name())
            """
        expect(run(text.replace("{path!r}", repr(str(path)))), "at 2.0 node ")
        path.write_text("[Client]\nAddress=/nonexistent/socket\n")
        expect(run(text.replace("{path!r}", repr(str(path))), address=cluster.path), "at 2.0 node ")


def people_see_the_program() -> None:
    with Cluster() as cluster:
        process = start("""\
            import sys, torch, dtorch
            dtorch.configure(program="my-training")
            with torch.profiler.record_function("epoch 1"):
                torch.ones(3, device="dtorch").sum().item()
                print(torch.dtorch.get_device_name(), flush=True)
                sys.stdin.readline()
            """, address=cluster.path)
        assert process.stdout is not None
        said = process.stdout.readline()
        jobs = cluster.ctl("job", "list")
        process.kill()
        process.communicate()
        assert "node" in said and "my-training" in jobs, said + jobs


def tools_show_what_a_program_is_in() -> None:
    """The ranges of the profiler that are open, and operators by name."""
    with Cluster() as cluster:
        process = start("""\
            import sys, torch, dtorch
            with torch.profiler.record_function("epoch 1"), torch.profiler.record_function("step 7"):
                x = torch.ones(3, device="dtorch")
                with torch.profiler.record_function("over by then"):
                    x = x.tanh()
                print(dtorch.session_info()["session"], x.sum().item(), flush=True)
                sys.stdin.readline()
            print("left", x.sum().item(), flush=True)
            sys.stdin.readline()
            """, address=cluster.path)
        assert process.stdout is not None and process.stdin is not None
        number = process.stdout.readline().split()[0]
        assert devicetest.becomes(lambda: "epoch 1 > step 7\n" in cluster.ctl("job", "show", number)), cluster.ctl("job", "show", number)
        assert devicetest.becomes(lambda: "aten::tanh" in cluster.ctl("job", "ops", number)), cluster.ctl("job", "ops", number)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline().startswith("left")
        assert devicetest.becomes(lambda: "epoch 1" not in cluster.ctl("job", "show", number)), cluster.ctl("job", "show", number)
        process.kill()
        process.communicate()


def bulk_bytes(cluster: Cluster) -> float:
    """Bytes of large tensors, by whatever way, as the worker counts them."""
    return cluster.counter("node", "dtorch_worker_bulk_bytes_total")


def small_values_come_inline() -> None:
    """In the messages themselves: nothing goes the way of large tensors, be it awaited, fetched or printed."""
    with Cluster() as cluster:
        process = start("""\
            import sys, torch, dtorch
            x = torch.arange(1024, device="dtorch", dtype=torch.float32)
            values = [dtorch.fetch(x * i) for i in range(20)]
            assert [v.result(600)[1].item() for v in values] == list(range(20))
            print(x.cpu().sum().item(), x[5].item(), x.tolist()[7], torch.ones(4).to("dtorch").sum().item(), flush=True)
            sys.stdin.readline()
            print(torch.zeros(1 << 16, device="dtorch").cpu().sum().item(), flush=True)
            sys.stdin.readline()
            """, address=cluster.path)
        assert process.stdout is not None and process.stdin is not None
        line = process.stdout.readline()
        assert line == "523776.0 5.0 7.0 4.0\n", line + process.communicate()[1][-500:]
        assert bulk_bytes(cluster) == 0
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "0.0\n"
        assert devicetest.becomes(lambda: bulk_bytes(cluster) >= 4 << 16) and bulk_bytes(cluster) == 4 << 16, bulk_bytes(cluster)
        process.kill()
        process.communicate()


CHECKS: list[Any] = [
    import_is_enough, dtorch_may_come_first, can_be_switched_off, import_connects_to_nothing,
    an_address_without_a_cluster_is_an_error_at_the_first_use, late_errors_name_the_line,
    errors_within_modules_name_the_line_that_calls, errors_of_backward_are_raised_too,
    an_error_that_nobody_asks_for_is_told_at_the_end, errors_pickle_and_print, memory_ends_with_pytorchs_error,
    ctrl_c_leaves_a_wait, a_session_is_usable_after_ctrl_c, a_forked_child_is_told, a_fork_before_the_first_use_is_fine,
    spawned_processes_have_their_own, ends_with_things_alive, connects_again_after_disconnect,
    a_mesh_of_an_earlier_session_may_be_too_large, several_device_indices, each_device_has_its_random_numbers,
    two_programs_share_a_worker, a_slow_link_changes_nothing, a_worker_holds_what_eager_would, a_file_says_where,
    people_see_the_program, tools_show_what_a_program_is_in, small_values_come_inline]


def main() -> int:
    import tempfile

    suite = devicetest.Suite("device process", devicetest.arguments())
    with tempfile.TemporaryDirectory(prefix="dtpy.") as folder:
        os.environ["DT_TEST_FOLDER"] = folder
        for function in CHECKS:
            suite.check(function.__name__.replace("_", " "), function, LIMIT_S)
        return suite.finish()


if __name__ == "__main__":
    sys.exit(main())
