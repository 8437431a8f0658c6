# SPDX-License-Identifier: Apache-2.0
"""Runs the loop on every worker of a Dask cluster, here two processes of this host: `python dask_cluster.py`."""
import os
import socket
from urllib.parse import urlsplit

from dask.distributed import Client, LocalCluster
from loop import train


def free_port() -> int:
    with socket.create_server(("", 0)) as listener:
        return listener.getsockname()[1]


def train_as(variables: dict[str, str]) -> float:
    os.environ.update(variables)
    return train()


def train_on_all(client: Client) -> list[float]:
    """Trains with one rank for each worker, a process with one thread. Returns the ranks' results."""
    workers = sorted(client.scheduler_info(n_workers=-1)["workers"])  # tcp://HOST:PORT: those of a host are neighbours.
    hosts = [urlsplit(worker).hostname for worker in workers]
    port = client.submit(free_port, workers=workers[:1], pure=False).result()
    tasks = []
    for rank, (worker, host) in enumerate(zip(workers, hosts)):
        variables = {
            **{"RANK": str(rank), "WORLD_SIZE": str(len(workers))},
            **{"LOCAL_RANK": str(rank - hosts.index(host)), "LOCAL_WORLD_SIZE": str(hosts.count(host))},
            **{"MASTER_ADDR": hosts[0], "MASTER_PORT": str(port)},
        }
        tasks.append(client.submit(train_as, variables, workers=[worker], pure=False))
    return client.gather(tasks)


if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        print(f"loss {train_on_all(client)[0]:.6f}")
