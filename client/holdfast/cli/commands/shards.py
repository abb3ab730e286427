"""`holdfast shard …`."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import backups, calls, cluster_calls, cluster_output, cluster_records, output, records
from holdfast.cli.commands import shard_plans
from holdfast.cli.commands.shared import Address, Json, Shard, Timeout, epilog, group, print_problems, timeout_option
from holdfast.cli.problems import ExitCode, Problem, not_current, problem_of, usage
from holdfast.client import HoldfastError, NodeReport, ReplicaHash, ReplicaRole, ShardHash
from holdfast.client.aio import DEFAULT_ADDRESS, DEFAULT_TIMEOUT_S

shard_app = group("Look at the replicas of shards, compare them, move them and their leaders.")

_LS_TIMEOUT_S = 3.0
_HASH_TIMEOUT_S = 30.0


@shard_app.command(
    "ls",
    epilog=epilog(
        "holdfast shard ls",
        "holdfast shard ls --address h1:7401,h2:7401,h3:7401",
        "holdfast shard ls --json | jq '.nodes[].replicas[] | select(.role == \"LEADER\")'",
    ),
)
def shard_ls(
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Annotated[
        float, timeout_option("How long to wait for nodes that do not answer: 500ms, 3s, …", shown="3s")
    ] = _LS_TIMEOUT_S,
    as_json: Json = False,
) -> int:
    """List every replica of every shard, as its own node sees it.

    role: leader, follower, learner (catches up, does not vote yet), candidate, blank (waits to be told);
    with "no leader" if it knows of none.
    term: the epoch it is in. commit: the last entry that is on a majority. applied: the last one in its state.
    lag: entries that it has not applied of those that are committed, as far as any node that answers knows.
    log: what its entries take on disk. snapshot: how long ago its state was last made durable by itself.
    It is enough to give the address of one node, or of a router: it names the others.
    Of a cluster with etcd it also says which replicas should be elsewhere, and --json has a list of shards.
    A node that does not answer is shown as such, and the exit code is 4; it is 1 if a replica knows no leader.
    If etcd does not answer, it is 8: where shards should be, and which nodes there are, is the last that was known.
    """
    with output.waiting("Asking every node …"):
        info, reports = cluster_calls.replicas(address, timeout_s)
    if as_json:
        records.print_json(cluster_records.replicas_json(info, reports))
    else:
        if info is not None:
            output.show(cluster_output.last_known_parts(info))
        output.print_replicas(reports)
        if info is not None:
            cluster_output.print_desired(info, reports)
    problems = [problem for report in reports for problem in _node_problems(report)]
    return print_problems([*([] if info is None else not_current(info)), *problems], as_json=as_json)


@shard_app.command(
    "recover",
    epilog=epilog(
        "holdfast shard recover 3 --data-dir /var/lib/holdfast --dry-run",
        "holdfast shard recover 3 --data-dir /var/lib/holdfast --i-accept-data-loss",
    ),
)
def shard_recover(
    shard: Shard,
    data_dir: Annotated[
        Path, typer.Option("--data-dir", metavar="DIR", help="Of a stopped node that has a replica of the shard.")
    ],
    accepted: Annotated[
        bool, typer.Option("--i-accept-data-loss", help="Needed: what only the lost replicas had is gone.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what is left; nothing is changed.")] = False,
    as_json: Json = False,
) -> int:
    """Make a shard that has lost its majority for good of what one node has left of it.

    Only if the other voters will never come back: what they acknowledged without this one is lost, and if they do come
    back, what they have is deleted. Stop the node first. Of several that are left take the one whose last entry has the
    largest term, then the largest index: --dry-run says it of each.
    Everything in this replica's log is kept, also entries of which nobody knows whether they were acknowledged.
    The shard begins another incarnation, in which this node is its only voter: all claims are given back, and no token
    of the former one counts. Start the node afterwards; others are added as the map, or the list of nodes, says.
    """
    if not accepted and not dry_run:
        raise usage(
            f"Expected --i-accept-data-loss to make shard {shard} of what one replica has left.",
            "Whatever a majority acknowledged without this replica is lost: see `holdfast shard recover --help`.",
        )
    found = backups.recover_shard(data_dir, shard, dry_run=dry_run)
    lost = [voter.partition("/")[0] for voter in found.voters if voter.partition("/")[0] != found.node]
    if as_json:
        records.print_json({
            "shard": found.shard, "node": found.node, "former_voters": list(found.voters), "incarnation":
            found.incarnation, "applied_index": found.applied_index, "last_index": found.last_index, "last_term":
            found.last_term, "entries_unsure": found.entries_kept, "dry_run": dry_run,
        })  # fmt: skip
        return ExitCode.OK
    verb = "would be" if dry_run else "is"
    output.print_line(f"Shard {shard} {verb} made of what {found.node} had, in its incarnation {found.incarnation}.")
    output.print_rows([
        ("kept", f"all entries up to {found.last_index:,} (term {found.last_term})"),
        ("unsure", f"{found.entries_kept:,} of them: in the log, but nobody knows whether they were acknowledged"),
        ("missing", f"whatever {', '.join(lost) or 'nobody'} had after that entry"),
    ])  # fmt: skip
    if not dry_run:
        output.print_note("Start the node. Tasks that were claimed are handed out again.")
    return ExitCode.OK


def _node_problems(report: NodeReport) -> list[Problem]:
    subject = f"Node {report.name or report.address}"
    if report.error is not None:
        return [_of_node(problem_of(report.error, subject=subject))]
    replicas = report.node.replicas if report.node is not None else ()
    leaderless = [replica for replica in replicas if not replica.knows_leader]
    if not leaderless:
        return []
    shards = f"shard{'s' * (len(leaderless) > 1)} {', '.join(str(replica.shard) for replica in leaderless)}"
    if all(replica.role is ReplicaRole.BLANK for replica in leaderless):
        message = f"{subject}: it has nothing of {shards} yet, and waits to be told."
        hint = "A new cluster begins when all of its nodes run. Otherwise its leader, if there is one, adds this node."
    else:
        message = f"{subject}: it knows no leader of {shards}."
        hint = "It is cut off from the others, or no majority of the voters runs. Its log says more: `no_leader`."
    return [Problem(ExitCode.REFUSED, "NO_LEADER", message, hint)]


def _of_node(problem: Problem) -> Problem:
    """Others of the cluster have answered, so the address is right."""
    if problem.exit_code is not ExitCode.UNREACHABLE:
        return problem
    return replace(problem, hint="Is it running, and can it be reached from here? Its own log says more.")


@shard_app.command("hash", epilog=epilog("holdfast shard hash", "holdfast shard hash 3 --timeout 2m --json"))
def shard_hash(
    shard: Annotated[
        int | None,
        typer.Argument(metavar="SHARD", min=0, help="The shard's number; all if none is given.", show_default=False),
    ] = None,
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Annotated[
        float, timeout_option("How long a shard may take, with replicas that are behind: 30s, 5m.", shown="30s")
    ] = _HASH_TIMEOUT_S,
    as_json: Json = False,
) -> int:
    """Compare the states of the replicas of a shard, or of all shards, at one index.

    The leader writes a probe into the log; every replica hashes its state when it gets there.
    Equal hashes mean equal states. Work goes on meanwhile.
    The exit code is 0 only if every replica has told its hash and all are equal.
    """
    info, reports = cluster_calls.replicas(address, min(timeout_s, _LS_TIMEOUT_S))
    shards = calls.shards_of(reports)
    if info is not None:  # every replica is asked itself; whoever gave the map may be a router
        address = ",".join(report.address for report in reports if report.node is not None)
    if shard is not None:
        with output.waiting(f"Waiting for every replica of shard {shard} …"):
            hashes = [calls.hash_shard(address, timeout_s, shard)]
            problems: list[Problem] = []
    else:
        hashes, problems = _hash_all(address, timeout_s, shards)
    if as_json:
        records.print_json(records.hashes_json(hashes))
    elif hashes:
        output.print_hashes(hashes)
    problems += [problem for of_shard in hashes for problem in _problems(of_shard)]
    return print_problems(problems, as_json=as_json)


def _hash_all(address: str, timeout_s: float, shards: Sequence[int]) -> tuple[list[ShardHash], list[Problem]]:
    """One after the other, and why some could not be compared."""
    hashes: list[ShardHash] = []
    problems: list[Problem] = []
    with output.progress("Comparing shards", total=len(shards)) as advance:
        for shard in shards:
            try:
                hashes.append(calls.hash_shard(address, timeout_s, shard))
            except HoldfastError as error:
                problems.append(problem_of(error, subject=f"Shard {shard}"))
            advance(1)
    return hashes, problems


def _problems(compared: ShardHash) -> list[Problem]:
    found = [_missing(compared.shard, replica) for replica in compared.replicas if replica.state_hash is None]
    if compared.different:
        message = f"The replicas of shard {compared.shard} differ at index {compared.index:,}."
        hint = "Rebuild the one that differs: stop its node, and start it with `holdfast broker --rebuild`."
        found.append(Problem(ExitCode.REFUSED, "REPLICAS_DIFFER", message, hint))
    return found


def _missing(shard: int, replica: ReplicaHash) -> Problem:
    subject = f"Shard {shard} on node {replica.node}"
    if replica.error is not None:
        return _of_node(problem_of(replica.error, subject=subject))
    message = f"{subject}: it did not get to the index in time; it is at {replica.applied_index:,}."
    return Problem(
        ExitCode.REFUSED, "REPLICA_BEHIND", message, "Allow more with --timeout, or see `holdfast shard ls`."
    )


@shard_app.command("transfer", epilog=epilog("holdfast shard transfer 0 n2", "holdfast shard transfer 0 n2 --json"))
def shard_transfer(
    shard: Shard,
    node: Annotated[str, typer.Argument(metavar="NODE", help="The name of the node that is to lead.")],
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Make another node the leader of a shard, e.g. before its node is taken down.

    Clients follow by themselves; nothing is lost, and no lease ends for it.
    Returns when the node leads; a node that leads already is left alone.
    """
    with output.waiting(f"Waiting for {node} to lead shard {shard} …"):
        transferred = calls.transfer(address, timeout_s, shard, node)
    if as_json:
        records.print_json(records.transferred_json(shard, transferred))
    else:
        output.print_line(f"Node {transferred.leader} leads shard {shard} (epoch {transferred.epoch}).")


shard_plans.add_to(shard_app)


def add_to(app: typer.Typer) -> None:
    app.add_typer(shard_app, name="shard", epilog=epilog("holdfast shard ls", "holdfast shard hash"))
