#!/usr/bin/env bash
# The GPU job of the experiments: four models trained at the same time, candidate files, scores, the bundled translator.
# Needs carry/ (experiments/pack.py).   start [SECONDS]: launch in the background and follow; wait [SECONDS]: follow on.
# Both copy what is finished to $OUT. Everything is kept in out/ (ignored), so a broken follow loses nothing.
set -u
cd "$(dirname "$0")/.."
export PYTHONPATH="$PWD/src:$PWD/carry/wheels" PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false OMP_NUM_THREADS=${OMP_NUM_THREADS:-4}
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1
PYTHON=${PYTHON:-python3}
# The carried wheels are for Python 3.12; a rehearsal under another Python uses its own packages.
"$PYTHON" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' || export PYTHONPATH="$PWD/src"
cp -n carry/_native*.so src/mbrace/ 2> /dev/null
mkdir -p out
seconds=${2:-570}
case "${1:-}" in
  start)
    if [ ! -e out/started ]; then
      date +%s > out/started
      # Small models leave most of the GPU idle: let their processes run on it at the same time, where that works.
      export CUDA_MPS_PIPE_DIRECTORY=/tmp/mps CUDA_MPS_LOG_DIRECTORY=/tmp/mps-log
      mkdir -p /tmp/mps /tmp/mps-log
      if command -v nvidia-cuda-mps-control > /dev/null && nvidia-cuda-mps-control -d \
        && timeout 45 "$PYTHON" -c 'import torch; print(torch.ones(8, device="cuda").sum().item())'; then
        echo "processes share the GPU (MPS)"
      else
        echo quit | timeout 10 nvidia-cuda-mps-control > /dev/null 2>&1
        unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
        echo "processes take turns on the GPU"
      fi
      setsid nohup "$PYTHON" experiments/gpu.py "${@:3}" > out/gpu.log 2>&1 < /dev/null &
      sleep 1
    fi ;;
  wait) ;;
  *) echo "usage: experiments/gpu.sh start|wait [SECONDS]" >&2; exit 2 ;;
esac
end=$(( $(date +%s) + seconds ))
while [ ! -e out/finished ] && [ "$(date +%s)" -lt "$end" ]; do sleep 2; done
echo "== $(( $(date +%s) - $(cat out/started) )) s since start; finished: $([ -e out/finished ] && echo yes || echo no)"
tail -n 25 out/gpu.log
for log in out/*.train.log out/*.generate.log; do [ -e "$log" ] && echo "-- $log" && tail -n 4 "$log"; done
for report in out/results/*.json; do [ -e "$report" ] && cat "$report" && echo; done
nvidia-smi --query-gpu=utilization.gpu,memory.used --format=csv,noheader 2> /dev/null
if [ -n "${OUT:-}" ]; then
  cp out/results/*.jsonl.xz out/results/*.tar "$OUT"/ 2> /dev/null  # with the logs: 8 files
  tar cJf "$OUT"/logs.tar.xz out/*.log out/models/*/training.json out/results/*.json 2> /dev/null
  ls -l "$OUT"
fi
exit 0
