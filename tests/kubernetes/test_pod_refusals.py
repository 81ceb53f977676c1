"""What Kubernetes refuses is a line that says where the rights are."""

from .pods import CONFIGURATION, ROOT, Cluster


def test_an_account_without_rights_hears_so_in_a_line(cluster: Cluster) -> None:
    nobody = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "nobody"}}
    cluster.plane.ask("POST", cluster.plane.of_namespace("serviceaccounts"), nobody)
    done = cluster.submit(ROOT / "jobs" / "prepare.py", str(CONFIGURATION), account="nobody", check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 69, said
    assert not [line for line in said.splitlines() if line.startswith(("\tat ", "Traceback"))], said
    (line,) = [line for line in said.splitlines() if line.startswith("sparkdl: ")]
    assert "403" in line and "conf/kubernetes/rights.yaml" in line, line
