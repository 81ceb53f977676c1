"""What Kubernetes refuses is a line that says where the rights are."""

from benchmarks.ports import free_ports

from .pods import CONFIGURATION, ROOT, Cluster


def refusal(cluster: Cluster, **how: str) -> str:
    """What a job says in a line of ours, without a stack of Java's."""
    done = cluster.submit(ROOT / "jobs" / "prepare.py", str(CONFIGURATION), check=False, **how)
    said = done.stdout + done.stderr
    assert done.returncode == 69, said
    lines = said.splitlines()
    assert not [line for line in lines if line.startswith(("\tat ", "Traceback"))], said
    (line,) = [line for line in lines if line.startswith("sparkdl: ")]
    return line


def test_an_account_without_rights_hears_so_in_a_line(cluster: Cluster) -> None:
    nobody = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "nobody"}}
    cluster.plane.ask("POST", cluster.plane.of_namespace("serviceaccounts"), nobody)
    line = refusal(cluster, account="nobody")
    assert "403" in line and "conf/kubernetes/rights.yaml" in line, line


def test_a_job_without_an_api_server_ends_with_a_line(cluster: Cluster) -> None:
    (port,) = free_ports(1)
    line = refusal(cluster, server=f"https://127.0.0.1:{port}")
    assert f"/127.0.0.1:{port}; start Kubernetes' API server" in line, line
