#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# setup_memfabric.sh FOLDER: the library MemFabric Hybrid 1.3.0, unmodified, and stand-ins for Ascend's libraries under it, so that it
# runs between processes of a machine without an NPU, over TCP. FOLDER/run COMMAND... runs a command with them. Costs nothing when it
# is there already. Where the package cannot be had, FOLDER/missing says why.
set -euo pipefail
folder=${1:?usage: setup_memfabric.sh FOLDER}
version=1.3.0
sources=$(cd "$(dirname "$0")/../tests/memfabric/cann" && pwd)
mkdir -p "$folder"
folder=$(readlink -f "$folder")
stamp="$version $(cat "$sources"/* "$0" | sha256sum | cut -c1-16) $(python3 -c 'import sys; print(sys.version_info[:2])')"
[ "$(cat "$folder/stamp" 2>/dev/null)" = "$stamp" ] && exit 0
rm -f "$folder/missing" "$folder/stamp"

package=$folder/package/memfabric_hybrid
if [ ! -d "$package" ]; then
  if ! python3 -m pip download -q --no-deps -d "$folder/download" "memfabric-hybrid==$version" > "$folder/pip.log" 2>&1; then
    echo "memfabric-hybrid $version cannot be had: $(grep -v 'is ignored' "$folder/pip.log" | tail -n 1)" | tee "$folder/missing"
    exit 0
  fi
  mkdir -p "$folder/package"
  (cd "$folder/package" && python3 -m zipfile -e "$folder"/download/memfabric_hybrid-"$version"-*.whl .)
  rm -rf "$folder/download"
fi
lib=$package/lib

# Ascend's libraries, all the same one under ten names.
ascend=$folder/ascend/lib64
mkdir -p "$ascend" "$folder/hcom"
python3 "$sources/names.py" "$lib/libmf_hybm_core.so" "$sources/special.c" > "$folder/names.c"
gcc -shared -fPIC -O1 -D_GNU_SOURCE -w -o "$ascend/libascendcl.so" "$folder/names.c" "$sources/special.c"
for name in ascend_hal runtime ra tsdclient hccl hcomm dcmi nnopbase opapi; do
  cp "$ascend/libascendcl.so" "$ascend/lib$name.so"
done
gcc -shared -fPIC -O1 -w -o "$folder/preload.so" "$sources/preload.c" -ldl
echo "Innerversion=V100R001C23SPC005B219" > "$folder/driver"
ln -sf "$lib/libhcom.so" "$folder/hcom/libhcom.so.0"
gcc -shared -fPIC -O1 -w -o "$folder/hcom/libhcom.so" "$sources/hcom.c" -L"$folder/hcom" -Wl,--no-as-needed -l:libhcom.so.0 \
  -Wl,--allow-shlib-undefined -ldl
# Stands where the library would look for its operators on the pool; builds of it need Ascend's compiler.
echo 'int AccOffloadSparseCopy(void){return 0;} int AccOffloadGroupPackCopy(void){return 0;} int AccOffloadKvExchange(void){return 0;}
int AccOffloadEntryGather(void){return 0;}' > "$folder/operators.c"
gcc -shared -fPIC -O1 -o "$lib/libmf_hybm_accoffload.so" "$folder/operators.c"

cat > "$folder/run" <<RUN
#!/usr/bin/env bash
# run COMMAND...: with MemFabric and the stand-ins. HCOM=tcp: an RDMA service is a TCP one.
export STANDIN_DRIVER=$folder/driver ASCEND_HOME_PATH=$folder/ascend
export LD_LIBRARY_PATH=\$([ "\${HCOM:-}" = tcp ] && echo "$folder/hcom:")$lib:$ascend MEMFABRIC_HYBRID_EXTEND_LIB_PATH=$lib
export PYTHONPATH=$folder/package\${PYTHONPATH:+:\$PYTHONPATH}
# Buffers of a connection for tests: as it stands, a transfer object takes 8.5 GB.
export MF_HCOM_SQ_SIZE=64 MF_HCOM_RQ_SIZE=64 MF_HCOM_CQ_DEPTH=256 MF_HCOM_PREPOST_SIZE=32 MF_HCOM_MAX_SEND_RECV_DATA_CNT=64
exec env LD_PRELOAD=$folder/preload.so "\$@"
RUN
chmod +x "$folder/run"
echo "$stamp" > "$folder/stamp"
