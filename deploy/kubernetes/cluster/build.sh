#!/usr/bin/env bash
# Builds the programs of the cluster from Debian's packages and Go's modules into the user's cache: Kubernetes, CoreDNS,
# kube-router (for NetworkPolicies), and the image of the first process of each pod; helm is built by
# deploy/bootstrap.sh. Go holds each module against its checksum database. About 20 minutes of two cores, once.
set -euo pipefail
SOURCES=$(cd "$(dirname "$0")" && pwd)/go
HOME_FOLDER=${WAYBILL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/waybill}/kubernetes
KUBERNETES=1.33.4
STAGING=v0.33.4
COREDNS=v1.14.3
KUBE_ROUTER=v2.1.0
# the same in all builds: with other flags Go compiles everything again
BUILD=(nice -n 10 go build -trimpath)
export CGO_ENABLED=0

say() { printf '\033[1m==>\033[0m %s\n' "$*"; }

mkdir -p "$HOME_FOLDER/bin" "$HOME_FOLDER/img"

# A module of its own in the cache: its folder becomes the working folder.
module() { mkdir -p "$HOME_FOLDER/src/$1"; cd "$HOME_FOLDER/src/$1"; }

# Kubernetes cannot be required as it is: each module of its staging folder is replaced by the published one.
build_components() {
  [ -x "$HOME_FOLDER/bin/hk" ] && return
  say "building Kubernetes $KUBERNETES"
  module hk
  cp "$SOURCES/components.go" main.go
  go mod download "k8s.io/kubernetes@v$KUBERNETES"
  local source; source=$(go env GOMODCACHE)/k8s.io/kubernetes@v$KUBERNETES
  cp "$source/go.sum" . && chmod u+w go.sum
  {
    printf 'module hk\n\ngo 1.24.0\n\ngodebug default=go1.24\n\n'
    sed -n '/^require (/,/^)/p' "$source/go.mod" | sed -E "s#^(\tk8s.io/[a-z-]+) v0.0.0\$#\1 $STAGING#"
    printf '\nrequire k8s.io/kubernetes v%s\n\nreplace (\n' "$KUBERNETES"
    grep -oE '^\s+k8s.io/[a-z-]+ => ./staging' "$source/go.mod" | awk -v s=$STAGING '{print "\t"$1" => "$1" "s}'
    echo ')'
  } > go.mod
  go mod tidy
  local version=k8s.io/component-base/version
  "${BUILD[@]}" -ldflags "-s -w -X $version.gitVersion=v$KUBERNETES -X $version.gitMajor=1 -X $version.gitMinor=33 \
    -X $version.gitTreeState=clean" -o "$HOME_FOLDER/bin/hk" .
  ln -sf hk "$HOME_FOLDER/bin/kubectl"
}

build_dns() {
  [ -x "$HOME_FOLDER/bin/coredns" ] && return
  say "building CoreDNS $COREDNS"
  module dns
  cp "$SOURCES/dns.go" main.go
  printf 'module dns\n\ngo 1.25.0\n\nrequire github.com/coredns/coredns %s\n' "$COREDNS" > go.mod
  go mod tidy
  "${BUILD[@]}" -ldflags "-s -w" -o "$HOME_FOLDER/bin/coredns" .
}

build_router() {
  [ -x "$HOME_FOLDER/bin/kube-router" ] && return
  say "building kube-router $KUBE_ROUTER"
  module kube-router
  local router=github.com/cloudnativelabs/kube-router/v2 source
  go mod download "$router@$KUBE_ROUTER"
  source=$(go env GOMODCACHE)/$router@$KUBE_ROUTER
  cp "$source/go.sum" . && chmod u+w go.sum
  { echo 'module router'; sed 1d "$source/go.mod"; echo "require $router $KUBE_ROUTER"; } > go.mod
  printf '//go:build tools\n\npackage tools\n\nimport _ "%s/cmd/kube-router"\n' "$router" > tools.go
  go mod tidy
  "${BUILD[@]}" -ldflags "-s -w" -o "$HOME_FOLDER/bin/kube-router" "$router/cmd/kube-router"
}

# An image as containerd reads it: one layer with one file.
build_pause() {
  [ -e "$HOME_FOLDER/img/pause.tar" ] && return
  say "building the image of each pod's first process"
  module pause
  cp "$SOURCES/pause.go" main.go
  printf 'module pause\n\ngo 1.22\n' > go.mod
  "${BUILD[@]}" -ldflags "-s -w" -o pause .
  local owner=(--owner=0 --group=0 --numeric-owner --mtime=@0) digest
  tar "${owner[@]}" -cf layer.tar pause
  digest=$(sha256sum layer.tar | cut -d' ' -f1)
  printf '{"architecture":"%s","os":"linux","config":{"Entrypoint":["/pause"]},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
    "$(go env GOARCH)" "$digest" > config.json
  printf '[{"Config":"config.json","RepoTags":["localhost/pause:1"],"Layers":["layer.tar"]}]' > manifest.json
  tar "${owner[@]}" -cf "$HOME_FOLDER/img/pause.tar" manifest.json config.json layer.tar
}

build_components
build_dns
build_router
build_pause
