#!/usr/bin/env bash
# Slurm 24.11 beside whatever Slurm this machine has: Debian trixie's packages, unpacked below a folder and bound to
# the libraries that came with them. Nothing is installed and no service starts. Needs apt, patchelf and the mirror.
#   fetch_slurm24.sh FOLDER     then: GANGRUN_TEST_SLURM=FOLDER/root python -m pytest tests/slurm
set -euo pipefail
folder=$(mkdir -p "$1" && cd "$1" && pwd)
root=$folder/root
[ -e "$folder/ready" ] && exit 0
rm -rf "$folder"
mkdir -p "$folder"/apt/{lists/partial,archives/partial,empty}
touch "$folder/apt/status"
echo "deb ${DEBIAN_MIRROR:-http://deb.debian.org/debian} trixie main" >"$folder/apt/sources.list"
apt=(apt-get -qq -o "Dir::Etc::SourceList=$folder/apt/sources.list" -o "Dir::Etc::SourceParts=$folder/apt/empty"
  -o "Dir::State=$folder/apt" -o "Dir::State::status=$folder/apt/status" -o "Dir::Cache=$folder/apt"
  -o Debug::NoLocking=1 -o APT::Sandbox::User=root -o APT::Install-Recommends=false)
"${apt[@]}" update
"${apt[@]}" install --yes --download-only slurmctld slurmd slurm-client slurm-wlm-basic-plugins
mkdir -p "$root"/{usr/bin,usr/sbin,usr/lib,usr/lib64} && ln -s usr/bin usr/sbin usr/lib usr/lib64 "$root"
for package in "$folder"/apt/archives/*.deb; do dpkg-deb --fsys-tarfile "$package" | tar -x -C "$root" --keep-directory-symlink; done
libraries=$(dirname "$(find "$root/usr/lib" -name libc.so.6 | head -n 1)")
slurm=$(dirname "$(find "$root/usr/lib" -name auth_munge.so | head -n 1)")
for program in "$root"/usr/bin/{sacct,salloc,sattach,sbatch,sbcast,scancel,scontrol,sinfo,squeue,srun,sstat} "$root"/usr/sbin/slurm*-wlm; do
  patchelf --set-interpreter "$libraries/ld-linux-x86-64.so.2" --force-rpath --set-rpath "$libraries:$slurm" "$program"
  echo "${program#"$root/"}" >>"$root/programs"
done
rm -rf "$folder/apt"
touch "$folder/ready"
