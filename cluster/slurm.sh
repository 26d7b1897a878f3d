#!/bin/bash
# A Ray cluster inside a Slurm job, and a command of this project on it:
#
#   sbatch --nodes=4 --gpus-per-node=4 cluster/slurm.sh \
#     hymotion-ray render /shared/prompts.jsonl --model /shared/hy-motion-1.0 --out /shared/out
#
# The environment (a venv or a module with this package and its extras) must be on a file system that
# all nodes see: set HYMOTION_ENV to the venv. Requeued after preemption or a time limit, the same
# command goes on where it stopped.
#SBATCH --job-name=hymotion
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --gpus-per-node=4
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:TERM@120
set -euo pipefail

[ $# -gt 0 ] || { echo "give the command to run, such as: hymotion-ray render ..." >&2; exit 2; }
if [ -n "${HYMOTION_ENV:-}" ]; then
  # shellcheck disable=SC1091
  source "$HYMOTION_ENV/bin/activate"
fi

# Ports from the job's number, so that jobs that share a node do not meet; below Ray's own range.
base=$((5000 + SLURM_JOB_ID % 400 * 10))
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(srun --nodes=1 --ntasks=1 -w "$head" hostname -I | awk '{print $1}')
export RAY_ADDRESS=$address:$base
export RAY_USAGE_STATS_ENABLED=0
# Ray starts workers at niceness 15, where any other program of the node takes the CPU from them.
export RAY_worker_niceness=0

# A token of this job alone: others on the nodes cannot run code in it. In the environment, which
# srun passes on, and never in a command line.
export RAY_AUTH_MODE=token
RAY_AUTH_TOKEN=$(python -c 'import secrets; print(secrets.token_hex(32))')
export RAY_AUTH_TOKEN

# Short, because Ray's sockets below it may have paths of 107 bytes at most, and on each node's disk.
temp=${TMPDIR:-/tmp}/r$SLURM_JOB_ID
options=(--block --temp-dir="$temp" --disable-usage-stats --num-gpus="${SLURM_GPUS_ON_NODE:-0}")
if [ "${SLURM_GPUS_ON_NODE:-0}" -gt 0 ]; then
  options+=(--resources="{\"sampler_slot\": $((SLURM_GPUS_ON_NODE * ${SLOTS_A_GPU:-1}))}")
fi

start_head() {
  srun --nodes=1 --ntasks=1 -w "$head" --overlap \
    ray start --head --node-ip-address="$address" --port="$base" --dashboard-host=127.0.0.1 \
    --dashboard-port=$((base + 1)) --dashboard-agent-listen-port=$((base + 2)) \
    --dashboard-agent-grpc-port=$((base + 3)) --metrics-export-port=$((base + 4)) "${options[@]}" &
  head_step=$!
}

nodes_alive() {
  timeout 60 python - <<'PYTHON' 2>/dev/null || echo 0
import ray
ray.init(logging_level="error", log_to_driver=False)
print(sum(node["Alive"] for node in ray.nodes()))
PYTHON
}

# Until the head is up; a worker that comes first would give up. Ray gives its own start 30 s, which a
# busy node may not have: then again.
start_head
tries=3
for _ in $(seq 60); do
  alive=$(nodes_alive)
  [ "$alive" -ge 1 ] && break
  if ! kill -0 "$head_step" 2>/dev/null; then
    [ $((tries -= 1)) -gt 0 ] || break
    start_head
  fi
  sleep 2
done
[ "$alive" -ge 1 ] || { echo "no head at $RAY_ADDRESS" >&2; exit 3; }

if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then
  srun --nodes=$((SLURM_JOB_NUM_NODES - 1)) --ntasks=$((SLURM_JOB_NUM_NODES - 1)) \
    --ntasks-per-node=1 --exclude="$head" --overlap \
    ray start --address="$RAY_ADDRESS" --dashboard-agent-listen-port=$((base + 2)) \
    --dashboard-agent-grpc-port=$((base + 3)) --metrics-export-port=$((base + 4)) "${options[@]}" &
fi

# All nodes, or what has come after five minutes: the engine takes on the rest as it joins.
for _ in $(seq 60); do
  [ "$alive" -ge "$SLURM_JOB_NUM_NODES" ] && break
  sleep 5
  alive=$(nodes_alive)
done
echo "Ray at $RAY_ADDRESS: $alive of $SLURM_JOB_NUM_NODES nodes"

# The command is a child, so that Slurm's warning reaches it and it can end cleanly.
"$@" &
command=$!
told=
trap 'told=yes; kill -TERM "$command" 2>/dev/null' TERM
wait "$command" && code=0 || code=$?
while [ -n "$told" ]; do  # the signal ended the wait, not the command
  told=
  wait "$command" && code=0 || code=$?
done
trap '' TERM
# Ends the srun steps, and with them the Ray of this job only.
mapfile -t steps < <(jobs -p)
kill "${steps[@]}" 2>/dev/null || true
wait 2>/dev/null || true
exit "$code"
