#!/bin/bash
# Default checks of families with nothing compiled, then campaigns with what they compiled; each family on a GPU and 16
# cores of its own. On a machine with four GPUs name up to four families; without a name there are all five:
#     bash benchmarks/gpu_session.sh FOLDER SECONDS SEED [FAMILY...]
# No campaign begins a case after SECONDS. FOLDER then holds checks.csv, feedback.csv, campaigns.csv and what each check
# printed, which `python benchmarks/gpu_checks.py --merge FOLDER` adds to the committed results, and session.log.
set -u
folder=$1 seconds=$2 seed=$3 turn=0
shift 3
families=("$@")
((${#families[@]})) || families=(sdpa lse lightning gated_delta semicrf)
work=$(mktemp -d)
mkdir -p "$folder" "$work/campaign"
declare -A dims=(  # fewer widths of tiles, each of which is compiled anew
    [sdpa]="--dim D=1,7,16,33,64 --dim Dv=1,5,16,48,64" [lse]="--dim D=1,7,16,33,64" [lightning]="" [gated_delta]="" [semicrf]=""
)
for family in "${families[@]}"; do
    (
        export CUDA_VISIBLE_DEVICES=$turn TRITON_CACHE_DIR=$work/$family
        cores=$((16 * turn))-$((16 * turn + 15))
        taskset -c "$cores" python3 benchmarks/gpu_checks.py "$family" --cache "$TRITON_CACHE_DIR" --output "$folder"
        if ((seconds - SECONDS > 30)); then
            # shellcheck disable=SC2086
            taskset -c "$cores" python3 benchmarks/campaign.py "${family}_shipped" --device cuda --cases 100000 \
                --seed "$seed" --seconds $((seconds - SECONDS)) --workers 16 ${dims[$family]} --output "$work/campaign"
        fi
    ) >"$work/$family.log" 2>&1 &
    turn=$((turn + 1))
done
wait
cp "$work/campaign/campaigns.csv" "$folder" 2>/dev/null
cat "$work"/*.log | tee "$folder/session.log"
