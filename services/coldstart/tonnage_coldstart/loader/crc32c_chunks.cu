// CRC32C of chunks that lie in device memory, without its initial and final inversion (`crc_operator.py` adds them).
//
// Many lanes share a chunk: lane `l` of `n` takes words l, l + n, l + 2n, ... A step over n words is linear, so it is four
// table look-ups; at the end each lane's remainder is carried over the n - l words to the chunk's end and all are added.
//
// crc32c_chunks.ptx is compiled from this file, for every GPU since Volta and drivers since CUDA 11:
//   nvcc -ptx -O3 -arch=compute_75 crc32c_chunks.cu && sed -i 's/^.version .*/.version 7.0/; s/^.target .*/.target sm_70/' crc32c_chunks.ptx

extern "C" __global__ void crc32c_chunks(
    const unsigned long long* __restrict__ chunks,  // address of each chunk, one a row of blocks
    const unsigned* __restrict__ step,              // 4 x 256: a remainder carried over n words
    const unsigned* __restrict__ powers,            // k x 32: the columns of the operator over 2^k words
    unsigned turns,                                 // words a lane takes of a chunk
    unsigned* __restrict__ remainders               // one a chunk, zero at first
) {
    __shared__ unsigned table[1024];
    for (unsigned i = threadIdx.x; i < 1024; i += blockDim.x) table[i] = step[i];
    __syncthreads();

    const unsigned lanes = gridDim.x * blockDim.x;
    const unsigned lane = blockIdx.x * blockDim.x + threadIdx.x;
    const unsigned* words = reinterpret_cast<const unsigned*>(chunks[blockIdx.y]) + lane;
    unsigned crc = 0;
#pragma unroll 4
    for (unsigned turn = 0; turn < turns; ++turn) {
        crc = table[crc & 255] ^ table[256 + (crc >> 8 & 255)] ^ table[512 + (crc >> 16 & 255)] ^ table[768 + (crc >> 24)];
        crc ^= words[static_cast<size_t>(turn) * lanes];
    }
    for (unsigned left = lanes - lane; left != 0; left >>= 1, powers += 32) {
        if ((left & 1) == 0) continue;
        unsigned carried = 0;
#pragma unroll 1
        for (unsigned bit = 0; bit < 32; ++bit) carried ^= powers[bit] & (0u - (crc >> bit & 1));
        crc = carried;
    }
    for (unsigned width = 16; width != 0; width >>= 1) crc ^= __shfl_xor_sync(~0u, crc, width);
    if ((threadIdx.x & 31) == 0) atomicXor(remainders + blockIdx.y, crc);
}
