#!/usr/bin/env bash
# Extract the MySQL server of Debian unstable into a folder, with all libraries that it needs.
#
#   tests/support/install_mysql.sh FOLDER
#
# Debian 12 and 13 have only MariaDB. No package is installed: apt downloads with its own state below
# FOLDER, as any user, and dpkg only unpacks. FOLDER/mysqld runs the server. It stays at the version of
# the first call; delete FOLDER for the newest.
set -euo pipefail

if [[ $# != 1 ]]; then
  echo "usage: $0 FOLDER" >&2
  exit 2
fi
mkdir -p "$1"
folder=$(cd "$1" && pwd)
if [[ -x $folder/mysqld ]]; then
  exit
fi

keyring=/usr/share/keyrings/debian-archive-keyring.gpg
if ! command -v apt-get >/dev/null || [[ ! -e $keyring ]]; then
  echo "This needs apt and the package debian-archive-keyring. On other systems, set" \
    "DYNBEAT_TEST_MYSQLD to the path of a mysqld." >&2
  exit 1
fi

# The mirror that this system uses.
mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | grep -m 1 '/debian/\?$' || true)
if [[ -z $mirror ]]; then
  echo "apt knows no mirror of Debian. Set DYNBEAT_TEST_MYSQLD to the path of a mysqld." >&2
  exit 1
fi

echo "Downloading the MySQL server of Debian unstable (70 MB) ..."
apt=$folder/apt
mkdir -p "$apt"/{lists/partial,archives/partial,apt.conf.d,preferences.d}
# No package is installed in this state, so apt downloads every library, libc included.
: >"$apt/status"
echo "deb [signed-by=$keyring] $mirror unstable main" >"$apt/sources.list"
cat >"$apt/apt.conf" <<CONF
Dir::Etc "$apt";
Dir::State "$apt";
Dir::State::status "$apt/status";
Dir::Cache "$apt";
# A user that is not root.
APT::Sandbox::User "";
APT::Install-Recommends "false";
# The folder keeps one version for months, and mirrors can be late.
Acquire::Check-Valid-Until "false";
Acquire::Languages "none";
Acquire::Retries "3";
CONF
export APT_CONFIG=$apt/apt.conf
apt-get -qq update
apt-get -qq --yes --download-only -o Debug::NoLocking=true install mysql-server-core mysql-client-core

system=$folder/system
rm -rf "$system"
for package in "$apt"/archives/*.deb; do
  dpkg-deb --extract "$package" "$system"
done
rm -rf "$apt"

# Relative to the scripts, so that the folder can be moved.
cd "$folder"
loader=$(find system/usr -name 'ld-linux-*.so.*' -print -quit)
libraries=$(dirname "$(find system/usr/lib -name libc.so.6 -print -quit)")
write_script() {
  local name=$1 program=$2 options=$3
  # The caller's arguments come first: the server accepts --no-defaults only there.
  cat >"$name" <<SCRIPT
#!/bin/sh
here=\$(dirname "\$(readlink -f "\$0")")
exec "\$here/$loader" --library-path "\$here/$libraries" "\$here/system/usr/$program" "\$@" $options
SCRIPT
  chmod 755 "$name"
}
write_script mysql bin/mysql ""
write_script mysqld.new sbin/mysqld \
  '--basedir="$here/system/usr" --lc-messages-dir="$here/system/usr/share/mysql"'
./mysqld.new --no-defaults --version
# Last: its existence says that the folder is complete.
mv mysqld.new mysqld
