"""usage: device_together.py [PART OF A NAME]...

Every way of being parallel on one worker whose devices have engines of their own, two programs at a time: each gets the values that
it gets alone, whether sessions share engines (Isolation=device) or not (Isolation=session). Llamas in a pipeline with data parallel
stages and in context with tensor parallelism, a diffusion transformer, the roles of reinforcement learning, a function over many items."""

import os
import pathlib
import subprocess
import sys
import textwrap

import devicetest
from devicecluster import Cluster

HERE = pathlib.Path(__file__).resolve().parent
EXAMPLES = HERE.parents[1] / "client/python/examples"
DEVICES = 4


def llama(mesh: str) -> list[str]:
    return [str(EXAMPLES / "llama_mesh.py"), f"--mesh={mesh}", "--steps=2", "--tokens=2", "--check"]


DIFFUSION = """
    import os
    import device_diffusion as test
    del os.environ["DTORCH_DTENSOR_IN_SAME_DEVICE"]
    for dims in (("cp", "tp"), ("dp",)):
        plan = test.plan_of(dims, test.plans.sd3_tensor_parallel("tp", head_width=test.WIDTH))
        test.equals_one_device(test.transformer, test.denoise, test.mesh_of(*dims), plan, 2, " x ".join(dims))
    print("as one device")
    """

ITEMS = """
    import torch
    import dtorch
    items = [torch.randn(20, 20, generator=torch.Generator().manual_seed(i)) for i in range(40)]
    got = dtorch.scalable(lambda x: torch.linalg.solve(x @ x.T + 20 * torch.eye(20, device=x.device), x).sum(0), items, workers=4)
    want = [torch.linalg.solve(x @ x.T + 20 * torch.eye(20), x).sum(0) for x in items]
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(want, got))
    print("as one device")
    """

# By name: what is run, what it says when its values are those of one device.
PROGRAMS = {
    "pipeline": (llama("dp2,pp2"), "beside one device: "), "context": (llama("cp2,tp2"), "beside one device: "),
    "diffusion": (["-c", textwrap.dedent(DIFFUSION)], "as one device"), "items": (["-c", textwrap.dedent(ITEMS)], "as one device"),
    "roles": ([str(EXAMPLES / "grpo.py"), "--steps=2", "--check", "--trainer=0,1", "--plan=fsdp", "--actor=2", "--reference=3"],
              "bit for bit")}
PAIRS = (("pipeline", "context"), ("roles", "diffusion"), ("items", "pipeline"))


def start(cluster: Cluster, name: str) -> "subprocess.Popen[str]":
    environment = {key: value for key, value in os.environ.items() if key != "DTORCH_DTENSOR_IN_SAME_DEVICE"}
    return subprocess.Popen([sys.executable, *PROGRAMS[name][0]], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            env=environment | {"DTORCH_ADDRESS": cluster.path})


def together(cluster: Cluster, names: tuple[str, ...]) -> None:
    programs = [start(cluster, name) for name in names]
    try:
        for name, program in zip(names, programs):
            said, _ = program.communicate(timeout=devicetest.LIMIT_S)
            if "is not installed" in said or "No module named" in said:
                raise devicetest.Skip(said.strip().splitlines()[-1])
            assert program.returncode == 0 and PROGRAMS[name][1] in said, f"{name}: {said[-600:]}"
    finally:
        for program in programs:
            program.kill()
            program.wait()


def main() -> int:
    suite = devicetest.Suite("device together", devicetest.arguments())
    for isolation in ("session", "device"):
        with Cluster(f"torch:cpu:{DEVICES}", f"Isolation={isolation}\n") as cluster:
            for names in PAIRS:
                suite.check(f"{' beside '.join(names)}, Isolation={isolation}", lambda n=names, c=cluster: together(c, n))
    return suite.finish()


if __name__ == "__main__":
    sys.exit(main())
