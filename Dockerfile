# syntax=docker/dockerfile:1
# The operator, and the helm and restic that it runs: no shell, no package manager, no libc.
#
# `cargo e2e release` makes an image with the same programs and settings without an engine, and the chart and the manifest that install it.
#
#   docker buildx build --tag registry.example.com/platform/clientapp-operator:0.1.0 --platform linux/amd64,linux/arm64 --push .
#
# e2e/tests/operator/manifests keeps the versions here in step with Cargo.toml and e2e/tools/{helm,restic}/go.mod.

# --- the operator ------------------------------------------------------------------------------------------------------
# Built on the target platform, emulated if necessary: the TLS library contains C, and emulation is simpler than a C
# cross-compiler for every pair of platforms.
FROM rust:1.95.0-slim-bookworm AS operator
ARG TARGETARCH
WORKDIR /build
# glibc is linked statically, with the resolver of names, and loads nothing at run time.
ENV RUSTFLAGS=-Ctarget-feature=+crt-static
# .dockerignore excludes files that only tests need.
COPY . .
# One cache per architecture, since builds for several run side by side. Because a target is named, the flags are not those of
# what runs while compiling.
RUN --mount=type=cache,id=cargo-registry-$TARGETARCH,target=/usr/local/cargo/registry \
    --mount=type=cache,id=cargo-target-$TARGETARCH,target=/build/target \
    target="$(uname -m)-unknown-linux-gnu" \
    && cargo build --release --locked --package clientapp-operator --target "$target" \
    && cp "target/$target/release/clientapp-operator" /clientapp-operator

# --- helm --------------------------------------------------------------------------------------------------------------
# Go cross-compiles, so no emulation is needed.
FROM --platform=$BUILDPLATFORM golang:1.26.8-bookworm AS helm
ARG TARGETARCH
WORKDIR /build
# This module pins helm and the checksums of its dependencies; the tests run the same helm.
COPY e2e/tools/helm/go.mod e2e/tools/helm/go.sum ./
# Without -X helm would report an incomplete version.
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    version=$(go list -m -f '{{.Version}}' helm.sh/helm/v4) \
    && CGO_ENABLED=0 GOOS=linux GOARCH="$TARGETARCH" go build -trimpath -buildvcs=false \
        -ldflags "-s -w -X helm.sh/helm/v4/internal/version.version=$version" \
        -o /helm helm.sh/helm/v4/cmd/helm
# An empty directory to copy, since scratch has no mkdir.
RUN mkdir /empty

# --- restic ------------------------------------------------------------------------------------------------------------
FROM --platform=$BUILDPLATFORM golang:1.26.8-bookworm AS restic
ARG TARGETARCH
WORKDIR /build
COPY e2e/tools/restic/go.mod e2e/tools/restic/go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 GOOS=linux GOARCH="$TARGETARCH" go build -trimpath -buildvcs=false -ldflags "-s -w" \
        -o /restic github.com/restic/restic/cmd/restic

# --- the image ---------------------------------------------------------------------------------------------------------
FROM scratch
# For chart repositories; the CA of the API server comes with the pod's service account.
COPY --from=helm /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
# Writable even if no volume is mounted, as with `docker run`.
COPY --from=helm --chown=65532:65532 /empty /tmp
COPY --from=helm /helm /helm
COPY --from=restic /restic /restic
COPY --from=operator /clientapp-operator /clientapp-operator
# Numeric, so that the kubelet can verify runAsNonRoot.
USER 65532:65532
ENV CLIENTAPP_HELM=/helm CLIENTAPP_RESTIC=/restic
EXPOSE 8080 8090
ENTRYPOINT ["/clientapp-operator"]
CMD ["run"]
