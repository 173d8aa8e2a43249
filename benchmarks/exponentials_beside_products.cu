// Do the products and the exponentials of headdim 64 get in each other's way when nothing makes them wait?
//
//   nvcc -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a -Isubmissions/cuda_hopper/kernels \
//        -o /tmp/beside benchmarks/exponentials_beside_products.cu && /tmp/beside          # seconds, one H100 or H200
//
// One CTA an SM, up to two warpgroups that only multiply and up to two that only do a softmax's arithmetic. One
// iteration is two trips of headdim 64 in each of them: 8 products S[64, 64] += Q K^T from shared memory and 8
// O[64, 64] += P V with P in registers, 512 tensor clocks; or 64 FFMA, 64 MUFU.EX2, 68 FADD and 32 F2FP a thread. Two
// and two are what four warpgroups of cuda_hopper do in one trip each, less loads, votes and address arithmetic.
// Printed: clocks an iteration.
#include <cstdio>

#include "sm90.cuh"

constexpr int ITERATIONS = 4000, SMEM_BYTES = 65536, THREADS = 512;

__device__ float multiply(uint32_t base, int wg) {
  float S[32], O[32]; uint32_t P[16];
  for (int i = 0; i < 32; i++) S[i] = O[i] = 0.f;
  for (int i = 0; i < 16; i++) P[i] = 0x2c002c00u + (threadIdx.x * 77 + i) % 1024;   // halves of about 2^-4
  const uint32_t q = desc_low(base + wg * 8192, 16), k = desc_low(base + 16384, 16), v = desc_low(base + 32768, 8192);
#pragma unroll 1
  for (int n = 0; n < ITERATIONS; n++) {
    wgmma_fence();
#pragma unroll
    for (int trip = 0; trip < 2; trip++) {
#pragma unroll
      for (int i = 0; i < 4; i++) QK<64>::mma(S, q + i * 2, k + trip * 512 + i * 2, 1);
#pragma unroll
      for (int i = 0; i < 4; i++) PV<64>::mma(O, P + 4 * i, v + trip * 512 + i * 128);
    }
    wgmma_commit(); wgmma_wait<0>();
  }
  touch(S); touch(O);
  float x = 0.f;
  for (int i = 0; i < 32; i++) x += S[i] + O[i];
  return x;
}

__device__ float exponentials() {
  float s[32], l = 0.f, m0 = 1.f + threadIdx.x * 1e-6f, m1 = 1.1f; uint32_t packed = 0;
  for (int i = 0; i < 32; i++) s[i] = i * 0.01f + threadIdx.x * 1e-5f;
#pragma unroll 1
  for (int n = 0; n < 2 * ITERATIONS; n++) {
    float p[32], s0 = 0.f, s1 = 0.f;
#pragma unroll
    for (int i = 0; i < 32; i++) p[i] = exp2_approx(fmaf(s[i], 0.01f, (i & 2) ? -m1 : -m0));
#pragma unroll
    for (int i = 0; i < 32; i += 4) { s0 += p[i] + p[i + 1]; s1 += p[i + 2] + p[i + 3]; }
#pragma unroll
    for (int i = 0; i < 32; i += 4) packed ^= pack_half2(p[i], p[i + 1]) ^ pack_half2(p[i + 2], p[i + 3]);
    l += s0 + s1; m0 += 1e-3f; m1 += 1e-3f;                 // the arguments change, so nothing leaves the loop
  }
  return l + packed;
}

__global__ void __launch_bounds__(THREADS, 1) beside(int multiplying, int softmax, uint32_t* clocks, float* sink) {
  extern __shared__ __align__(1024) uint8_t smem[];
  const int wg = __shfl_sync(~0u, threadIdx.x >> 7, 0);
  for (int i = threadIdx.x; i < SMEM_BYTES / 4; i += THREADS)
    reinterpret_cast<uint32_t*>(smem)[i] = 0x3c003800u + (i * 2654435761u & 0x03ff03ffu);   // halves from 0.5 to 2
  proxy_fence(); __syncthreads();
  uint32_t begin, end; float x = 0.f;
  asm volatile("mov.u32 %0,%%clock;" : "=r"(begin)::"memory");
  if (wg < 2) { if (wg < multiplying) x = multiply(smem_u32(smem), wg); }
  else if (wg - 2 < softmax) x = exponentials();
  asm volatile("mov.u32 %0,%%clock;" : "=r"(end)::"memory");
  sink[blockIdx.x * THREADS + threadIdx.x] = x;
  if ((threadIdx.x & 127) == 0) clocks[blockIdx.x * 4 + wg] = end - begin;
}

int main() {
  int sms; cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0);
  uint32_t* clocks; float* sink; cudaMalloc(&clocks, sms * 16); cudaMalloc(&sink, sms * THREADS * 4);
  cudaFuncSetAttribute(beside, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_BYTES);
  for (int multiplying = 0; multiplying <= 2; multiplying++) {
    for (int softmax = 0; softmax <= 2; softmax++) {
      for (int warm = 0; warm < 2; warm++) beside<<<sms, THREADS, SMEM_BYTES>>>(multiplying, softmax, clocks, sink);
      if (const cudaError_t failure = cudaDeviceSynchronize()) { puts(cudaGetErrorString(failure)); return 1; }
      uint32_t found[4]; cudaMemcpy(found, clocks, sizeof found, cudaMemcpyDeviceToHost);
      printf("multiplying %d, softmax %d: clocks an iteration %4.0f %4.0f | %4.0f %4.0f\n", multiplying, softmax,
             found[0] / (double)ITERATIONS, found[1] / (double)ITERATIONS, found[2] / (double)ITERATIONS,
             found[3] / (double)ITERATIONS);
    }
  }
}
