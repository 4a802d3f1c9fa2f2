# What a careful person would write instead of this project: the whole rollout as one script on the host, the files
# as a tar on stdin. The same gates, but no lock, no journal, no recovery: it is the yardstick for speed, not for
# safety.
set -euo pipefail
PY=/opt/sglang/venv/bin/python
SITE=$("$PY" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
T=$(mktemp -d "$SITE/../.handmade.XXXXXX")
trap 'rm -rf "$T"' EXIT
B=/var/lib/handmade/$(date +%s%N)
mkdir -p "$B"
export PYTHONDONTWRITEBYTECODE=1

ask() { # PROMPT TOKENS
  curl -fsS -H 'Content-Type: application/json' http://127.0.0.1:30000/generate \
    -d "{\"text\": \"$1\", \"sampling_params\": {\"temperature\": 0, \"max_new_tokens\": $2}}"
}
tokens() { # two prompts, greedy; only the tokens
  for prompt in 'one two three' 'four five six'; do
    ask "$prompt" 8 | "$PY" -c 'import json, sys; print(json.load(sys.stdin)["output_ids"])'
  done
}
round() {
  "$PY" -c 'from sglang.benchmark import serving; serving.cli_main()' --backend sglang --dataset-name custom \
    --dataset-path "$T/prompts.jsonl" --num-prompts 8 --max-concurrency 4 --sharegpt-output-len 8 --output-file "$T/$1"
}
bench() { # a round that does not count, and one in which all eight requests have to be completed
  round "warm-$1"
  round "$1"
  "$PY" -c 'import json, sys; sys.exit(json.load(open(sys.argv[1]))["completed"] != 8)' "$T/$1"
}

# Is this the host that it is meant for?
[ "$("$PY" -c 'import importlib.metadata as m; print(m.version("sglang"))')" = 0.5.23 ]
[ "$(df --output=avail -m "$SITE" | tail -1)" -gt 64 ]
[ "$(systemctl show --property=LoadState --value sglang)" = loaded ]
for maps in $(grep -lsF "$SITE/" /proc/[0-9]*/maps || true); do # nobody but the service uses this venv
  grep -q '/sglang.service$' "${maps%maps}cgroup"
done

# Stage and check.
tar -xf - -C "$T"
cd "$T"
sha256sum -c --quiet SHA256SUMS
mapfile -t FILES < <(cd site && find . -type f | sort)
(cd site && "$PY" -m py_compile $(find . -name '*.py')) && find site -name __pycache__ -exec rm -r {} +
cp -rs "$SITE/sglang" farm-sglang && mkdir farm && mv farm-sglang farm/sglang
cp -r --remove-destination site/. farm/
[ "$(PYTHONPATH=$T/farm "$PY" checks/tiny_smoke.py | tail -1)" = 'tiny_ok 32' ]

# Keep, and measure what is.
for f in "${FILES[@]}"; do
  if [ -e "$SITE/$f" ]; then (cd "$SITE" && cp -p --parents "$f" "$B"); fi
done
tokens > before.txt
bench before.json

# Stop, install, start.
curl -fsS http://127.0.0.1:30000/v1/loads > load.json
[ "$("$PY" -c 'import json; print(sum(x["num_running_reqs"] for x in json.load(open("load.json"))["loads"]))')" = 0 ]
systemctl stop sglang
[ ! -s /sys/fs/cgroup/system.slice/sglang.service/cgroup.procs ]
[ -z "$(ss -Hltn 'sport = :30000')" ]
for f in "${FILES[@]}"; do
  mkdir -p "$(dirname "$SITE/$f")"
  mv -f "site/$f" "$SITE/$f"
done
sync -f "$SITE"
sed -n 's#  site/#  #p' SHA256SUMS > installed
(cd "$SITE" && sha256sum -c --quiet "$T/installed")
[ "$(cd / && "$PY" -c 'import tiny_ddtree; print(tiny_ddtree.__file__)')" = "$SITE/tiny_ddtree/__init__.py" ]
D=/etc/systemd/system/sglang.service.d
mkdir -p "$D"
COMMAND=$(sed -n 's/^ExecStart=//p' /etc/systemd/system/sglang.service | sed 's/DFLASH/DDTREE/')
printf '[Service]\nExecStart=\nExecStart=%s\n' "$COMMAND" > "$D/zz-handmade.conf"
systemctl daemon-reload
systemctl start sglang

# Judge.
for _ in $(seq 400); do
  if ask 'are you there' 4 > /dev/null 2>&1; then break; fi
  sleep 0.05
done
PID=$(systemctl show --property=MainPID --value sglang)
for _ in 1 2 3; do ask 'are you well' 4 > /dev/null; done
tokens > after.txt
cmp before.txt after.txt
bench after.json
ask 'one last look' 4 > /dev/null
[ "$(systemctl show --property=MainPID --value sglang)" = "$PID" ]
echo DONE
