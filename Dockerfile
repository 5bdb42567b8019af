# The images of Millrace. docs/deploy.md explains how to build and use them:
#
#   docker build --target cpu --tag millrace:cpu .
#   docker build --target cuda --tag millrace:cuda .

# The toolchain. Its Debian release is the one whose C library the images contain.
ARG RUST=1.95
# The stage or image that has the binaries below /millrace: `builder` compiles the sources.
ARG BINARY=builder
ARG CUDA_BINARY=cuda-builder

# The manifests of the workspace with empty sources. A change of a source does not change these
# files, so that the layer of compiled dependencies stays valid.
FROM rust:${RUST}-bookworm AS manifests
WORKDIR /manifests
COPY . .
RUN mkdir --parents xtask/src integration-tests/src \
 && touch xtask/src/main.rs integration-tests/src/lib.rs \
 && find . -type f -path '*/src/*' ! -path '*/src/lib.rs' ! -path '*/src/main.rs' -delete \
 && find . -type f ! -name '*.rs' ! -name 'Cargo.*' ! -path './.cargo/*' -delete \
 && find . -type f -name '*.rs' -exec sh -c 'for file; do echo "fn main() { }" > "$file"; done' sh {} + \
 && find . -type f -path '*/src/lib.rs' -exec truncate --size 0 {} + \
 && find . -type d -empty -delete

FROM rust:${RUST}-bookworm AS dependencies
WORKDIR /build
COPY --from=manifests /manifests .
# Cargo compares times, and the sources may be older than what is built here from empty ones, so it
# must forget the packages of the workspace.
RUN cargo build --profile dist --locked --package millrace --bin millrace \
 && rm -r target/dist/.fingerprint/millrace*

FROM dependencies AS builder
COPY . .
RUN cargo build --profile dist --locked --offline --package millrace --bin millrace \
 && install -D target/dist/millrace /millrace/millrace

FROM debian:bookworm-slim AS pip
RUN apt-get update \
 && apt-get install --yes --no-install-recommends ca-certificates python3-pip \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /wheels
ENV PIP_NO_CACHE_DIR=1 PIP_NO_COMPILE=1 PIP_NO_DEPS=1 PIP_ONLY_BINARY=:all:

# NVIDIA's compiler.
FROM pip AS toolkit
COPY kernels/cuda/toolkit.txt .
RUN pip install --target /toolkit --requirement toolkit.txt

FROM pip AS libraries
COPY kernels/cuda/libraries.txt .
RUN pip install --target /wheels --requirement libraries.txt
# The libraries that the binary opens, with their licences, but without headers and the rest of
# cuBLAS.
RUN mkdir --parents /libraries/doc \
 && cp --no-dereference \
        /wheels/nvidia/cu13/lib/libcublasLt.so.13 \
        /wheels/nvidia/cu13/lib/libnvrtc.so.13 \
        /wheels/nvidia/cu13/lib/libnvrtc-builtins.so.13.0 \
        /wheels/nvidia/nccl/lib/libnccl.so.2 \
        /libraries \
 && for wheel in /wheels/*.dist-info; do \
        cp --recursive "$wheel" /libraries/doc; \
    done

# The same dependencies, and sources with machine code for GPUs.
FROM dependencies AS cuda-builder
COPY --from=toolkit /toolkit/nvidia/cu13 /usr/local/cuda
COPY . .
RUN CUDA_HOME=/usr/local/cuda cargo build --profile dist --locked --offline --package millrace \
        --bin millrace --features embed-cubin \
 && install -D target/dist/millrace /millrace/millrace

FROM ${BINARY} AS binary
FROM ${CUDA_BINARY} AS cuda-binary

# Files that both images have.
FROM rust:${RUST}-bookworm AS common
WORKDIR /common
COPY LICENSE usr/share/doc/millrace/LICENSE
RUN mkdir --parents usr/local/bin \
 && ln --symbolic millrace usr/local/bin/text-generation-launcher \
 && install --directory --mode=1777 tmp \
 && install --directory --owner=65532 --group=65532 data

# The system of the CPU image: the C library, the certificates, and no shell. Scanners find the
# packages by their records.
FROM common AS system
COPY --from=binary /millrace/millrace usr/local/bin/millrace
RUN ldd usr/local/bin/millrace | grep --only-matching '/[^ ]*' \
        | xargs cp --dereference --parents --target-directory=. \
 && mkdir --parents etc/ssl/certs var/lib/dpkg/status.d \
 && cp /etc/ssl/certs/ca-certificates.crt etc/ssl/certs \
 && echo 'root:x:0:0:root:/root:/sbin/nologin' > etc/passwd \
 && echo 'millrace:x:65532:65532:millrace:/tmp:/sbin/nologin' >> etc/passwd \
 && printf 'root:x:0:\nmillrace:x:65532:\n' > etc/group \
 && echo 'hosts: files dns' > etc/nsswitch.conf \
 && cp /etc/os-release etc \
 && for package in libc6 libgcc-s1 ca-certificates; do \
        dpkg-query --status "$package" > "var/lib/dpkg/status.d/$package" || exit 1; \
        mkdir --parents "usr/share/doc/$package" || exit 1; \
        cp --dereference "/usr/share/doc/$package/copyright" "usr/share/doc/$package" || exit 1; \
    done

FROM scratch AS cpu
ARG VERSION=
ARG REVISION=
LABEL org.opencontainers.image.title="Millrace" \
      org.opencontainers.image.description="An LLM inference server, for CPUs" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=system /common /
# Port, folder of models and address are those of TGI's image. HOSTNAME is the container's name.
ENV PATH=/usr/local/bin \
    HOME=/tmp \
    MILLRACE_HOSTNAME=0.0.0.0 \
    PORT=80 \
    HUGGINGFACE_HUB_CACHE=/data
USER 65532:65532
EXPOSE 80
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=5s --start-period=30m --retries=3 CMD ["millrace", "health"]
ENTRYPOINT ["millrace"]
CMD ["serve"]

FROM debian:bookworm-slim AS cuda
ARG VERSION=
ARG REVISION=
LABEL org.opencontainers.image.title="Millrace" \
      org.opencontainers.image.description="An LLM inference server, for NVIDIA GPUs" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=libraries /libraries /usr/local/lib/cuda
RUN echo /usr/local/lib/cuda > /etc/ld.so.conf.d/cuda.conf \
 && ldconfig \
 && echo 'millrace:x:65532:65532:millrace:/tmp:/sbin/nologin' >> /etc/passwd \
 && echo 'millrace:x:65532:' >> /etc/group
COPY --from=pip /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=common /common /
COPY --from=cuda-binary /millrace/millrace /usr/local/bin/millrace
# The NVIDIA container toolkit reads the NVIDIA variables, and adds the driver's libraries. It refuses, in one sentence, drivers that
# cannot run the libraries of CUDA 13, which are those before version 580.
ENV HOME=/tmp \
    MILLRACE_HOSTNAME=0.0.0.0 \
    PORT=80 \
    HUGGINGFACE_HUB_CACHE=/data \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    NVIDIA_REQUIRE_CUDA=cuda>=13.0
USER 65532:65532
EXPOSE 80
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=5s --start-period=30m --retries=3 CMD ["millrace", "health"]
ENTRYPOINT ["millrace"]
CMD ["serve"]
