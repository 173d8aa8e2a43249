// Attention backward on Hopper (sm_90a), headdim 64: 256 kv rows a block, each of two warpgroups owns two sub-blocks of 64 and alternates between them.
//
// Shapes   q, k, v, do, dk, dv [B, H, S, 64] contiguous fp16; TMA boxes of 64 columns, 128-byte swizzle, rows past S are zeros
//          stats, dq_sum: see passes.cu
//          k_smem, v_smem [256, 64]   q_smem, do_smem [4][64, 64]   ds_smem [3][256, 64]   lse_smem, delta_smem [4][64]
#include "passes.cuh"
#include "rows.cuh"

#ifndef SKIP
#define SKIP 1
#endif
#ifndef DQ_EACH
#define DQ_EACH 0       // 0: the warpgroups take turns at the whole dQ of a tile; 1: each makes 32 of its 64 query columns
#endif

constexpr int D = 64, M = 64, N = 256;
constexpr int STAGES = 4, DS_BUFFERS = 3;
constexpr int NQ = DQ_EACH ? 16 : 32;
constexpr uint32_t KV_BYTES = N * D * 2, TILE_BYTES = M * D * 2, DS_BYTES = N * M * 2, STAT_BYTES = M * 4;
constexpr int THREADS = 256, WARPS = 8;

struct Params {
  Passes passes;
  uint16_t* dk;          // [heads, seqlen, D] fp16
  uint16_t* dv;
  int causal;
  float scale_log2;      // softmax scale times log2(e)
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
backward(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map, const __grid_constant__ TensorMap v_map,
         const __grid_constant__ TensorMap do_map, const __grid_constant__ Params p) {
  SHARED_MEMORY(smem);
  const int tiles = (p.passes.seqlen + M - 1) / M, kv_blocks = (p.passes.seqlen + N - 1) / N;
  const Item item = item_of<D>(blockIdx.x, p.passes, tiles, kv_blocks);
  if (item.kind == PREPROCESS) { preprocess_block<D>(p.passes, item, tiles); return; }
  if (item.kind == POSTPROCESS) { postprocess_block<D>(p.passes, item, tiles, kv_blocks, smem); return; }

  const uint32_t base = smem_u32(smem);
  const uint32_t k_smem = base, v_smem = k_smem + KV_BYTES, q_smem = v_smem + KV_BYTES, do_smem = q_smem + STAGES * TILE_BYTES;
  const uint32_t ds_smem = do_smem + STAGES * TILE_BYTES;
  const uint32_t lse_smem = ds_smem + DS_BUFFERS * DS_BYTES, delta_smem = lse_smem + STAGES * STAT_BYTES;
  const uint32_t q_full = delta_smem + STAGES * STAT_BYTES, do_full = q_full + 8 * STAGES, k_full = do_full + 8 * STAGES, v_full = k_full + 8, ds_full = v_full + 8;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2 * STAGES + 2; i++) mbar_init(q_full + 8 * i, 1);
    for (int i = 0; i < DS_BUFFERS; i++) mbar_init(ds_full + 8 * i, WARPS);
    mbar_init_done(); proxy_fence();
  }
  __syncthreads();

  // blocks of a section of heads: kv block 0 of each head, then kv block 1, ...: the longest first if causal
  const int kv_block = item.index / item.wide, head = item.section * p.passes.section + item.index - kv_block * item.wide, kv0 = kv_block * N;
  const int first = p.causal ? kv0 / M : 0, seqlen = p.passes.seqlen;

  const int warps = __shfl_sync(~0u, threadIdx.x >> 5, 0), w = warps >> 2, warp = warps & 3;
  const int lane = threadIdx.x & 31, lane0 = lane == 0, pair = 2 * (lane & 3);
  const int sub_a = w, sub_b = 3 - w;                            // the diagonal's work shared out evenly
  float s[32], dp[32], dk_a[32], dv_a[32], dk_b[32], dv_b[32]; uint32_t p_a[16], p_b[16], ds_a[16], ds_b[16];
  const int matrix_row = warp * 16 + (lane & 15), matrix_chunk = lane >> 4;

  // LOAD: warpgroup 0 asks for q and k, warpgroup 1 for do and v, by lane 0 of its first warp
  const float* stat = p.passes.stats + ((uint64_t)head * tiles + first) * 128 + M * w;
  auto stage_of = [&](int tile) { return (tile - first) % STAGES; };
  auto parity_of = [&](int tile) { return (uint32_t)(tile - first) / STAGES & 1; };
  auto load_tile = [&](int tile) {
    const int stage = stage_of(tile);
    const TensorMap* map = w ? &do_map : &q_map;
    const uint32_t full = (w ? do_full : q_full) + 8 * stage, dst = (w ? do_smem : q_smem) + stage * TILE_BYTES;
    mbar_expect_if(full, TILE_BYTES + STAT_BYTES, lane0);
    tma_load_if(dst, map, 0, tile * M, head, full, lane0);
    bulk_load_if((w ? delta_smem : lse_smem) + stage * STAT_BYTES, stat + (tile - first) * (2 * M), STAT_BYTES, full, lane0);
  };
  if (warp == 0) {
    const uint32_t full = w ? v_full : k_full;
    mbar_expect_if(full, KV_BYTES, lane0);
    tma_load_if(w ? v_smem : k_smem, w ? &v_map : &k_map, 0, kv0, head, full, lane0);
    counter_wait(p.passes.done + 2 * item.section, pass_blocks<D>(item.wide, tiles)); proxy_fence_global();
    load_tile(first);
    if (first + 1 < tiles) load_tile(first + 1);
  }

  // x = a sub-block of K or V times a tile of q or do, transposed: [64 kv rows, 64 query columns]
  auto issue_score = [&](float (&x)[32], uint32_t kv, int sub, uint32_t tile_smem) {
#pragma unroll
    for (int i = 0; i < 4; i++) MmaSS<64, 0, 0>::mma(x, desc_low(kv, 16) + sub * 512 + i * 2, desc_low(tile_smem, 16) + i * 2, i != 0);
    wgmma_commit();
  };
  // acc += x^T tile, x^T [64 kv rows, 64 query columns] in registers
  auto issue_accumulate = [&](float (&acc)[32], const uint32_t (&x)[16], uint32_t tile_smem) {
#pragma unroll
    for (int i = 0; i < 4; i++) MmaRS<64, 1>::mma(acc, x + 4 * i, desc_low(tile_smem, TILE_BYTES) + i * 128, 1);
    wgmma_commit();
  };
  // P^T = 2^(S^T * scale - lse), 0 above the diagonal and past the last key, to fp16
  auto make_p = [&](uint32_t (&out)[16], int tile, int sub, uint32_t lse) {
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      const float4 l = lds_float4(lse + j * 32 + pair * 8);      // query columns of registers 4 j ... 4 j + 7: stat_place
#pragma unroll
      for (int i = 0; i < 8; i++) s[4 * j + i] = exp2_approx(fmaf(s[4 * j + i], p.scale_log2, i < 4 ? (i & 1) ? -l.y : -l.x : (i & 1) ? -l.w : -l.z));
    }
    const int rows0 = kv0 + 64 * sub, row = rows0 + warp * 16 + (lane >> 2);
    if ((p.causal && tile * M < rows0 + 63) || rows0 + 64 > seqlen) {
      const int from0 = row >= seqlen ? 1 << 30 : p.causal ? row - tile * M - pair : -1;           // first query column that sees the row,
      const int from1 = row + 8 >= seqlen ? 1 << 30 : p.causal ? row + 8 - tile * M - pair : -1;   // less this lane's column
#pragma unroll
      for (int i = 0; i < 32; i++) s[i] = i / 4 * 8 + (i & 1) < ((i & 2) ? from1 : from0) ? 0.f : s[i];
    }
    pack_rows(out, s);
  };
  // dS^T = P^T (dP^T - delta), to fp16 in registers and in ds_smem
  auto make_ds = [&](uint32_t (&out)[16], const uint32_t (&pt)[16], int sub, uint32_t delta, uint32_t ds_tile) {
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      const float4 d = lds_float4(delta + j * 32 + pair * 8);
#pragma unroll
      for (int i = 0; i < 4; i++) {                              // row g of columns 8 j, row g + 8, the same of columns 8 j + 8
        const float2 x = unpack_half2(pt[2 * j + i]);
        out[2 * j + i] = pack_half2(x.x * (dp[4 * j + 2 * i] - (i < 2 ? d.x : d.z)), x.y * (dp[4 * j + 2 * i + 1] - (i < 2 ? d.y : d.w)));
      }
      store_matrices(swizzled(ds_tile, 64 * sub + matrix_row, j + matrix_chunk), out + 2 * j);
    }
  };
  float* dq_out = p.passes.dq_sum + ((uint64_t)head * tiles + first) * (M * D) + (DQ_EACH ? warps : warp) * 512 + lane * 4;
  // dQ^T of a tile = K^T dS^T, 16 of its D rows a warp, added to dq_sum
  auto dq_step = [&](uint32_t ds_tile) {
    float dq[NQ];
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < N / 16; i++) {
      const uint32_t kt = desc_low(k_smem, KV_BYTES) + i * 128;
      if constexpr (DQ_EACH) MmaSS<32, 1, 1, 128>::mma(*reinterpret_cast<float (*)[16]>(dq), kt, desc_low(ds_tile + w * 64, DS_BYTES) + i * 128, i != 0);
      else MmaSS<64, 1, 1>::mma(*reinterpret_cast<float (*)[32]>(dq), kt, desc_low(ds_tile, DS_BYTES) + i * 128, i != 0);
    }
    wgmma_commit(); wgmma_wait<0>(); touch(dq);
#pragma unroll
    for (int j = 0; j < NQ / 4; j++)                             // passes.cu: four query columns of 8 for the first four warps, then four for the others
      red_add_float4(dq_out + (j / 4) * 2048 + (j % 4) * 128, dq[4 * j], dq[4 * j + 1], dq[4 * j + 2], dq[4 * j + 3]);
  };

  zero(dk_a); zero(dv_a); zero(dk_b); zero(dv_b);
  mbar_wait(k_full, 0); mbar_wait(v_full, 0);
  // dS of tile i of a block is in buffer i % 3
  int tile = first, buffer = 0; uint32_t ds_parity = 1;          // ds_parity: of the buffer before
  auto before = [&] { return buffer == 0 ? DS_BUFFERS - 1 : buffer - 1; };
  auto next_trip = [&] {
    if (buffer == 0) ds_parity ^= 1;
    buffer = buffer == DS_BUFFERS - 1 ? 0 : buffer + 1;
  };
  auto load_ahead = [&](int tile) {                              // into the slot of the last tile that everybody is through with
    if (warp == 0 && tile + 2 < tiles) load_tile(tile + 2);
  };
  auto dq_before = [&](int tile) {
    if (tile == first) return;
    if (DQ_EACH || (tile & 1) == w) dq_step(ds_smem + before() * DS_BYTES);
    dq_out += M * D;
  };

  // DIAGONAL: the first three query tiles of a causal block see one, two, three of its four sub-blocks
#if SKIP
  auto sub_block = [&](int sub, float (&dk)[32], float (&dv)[32], uint32_t (&pt)[16], uint32_t (&ds)[16]) {
    const int stage = stage_of(tile);
    const uint32_t q_tile = q_smem + stage * TILE_BYTES, do_tile = do_smem + stage * TILE_BYTES, ds_tile = ds_smem + buffer * DS_BYTES;
    if (tile < first + sub) {                                    // sees nothing: dS = 0
      const uint32_t none[4] = {0, 0, 0, 0};
#pragma unroll
      for (int j = 0; j < 8; j += 2) store_matrices(swizzled(ds_tile, 64 * sub + matrix_row, j + matrix_chunk), none);
      return;
    }
    wgmma_fence(); issue_score(s, k_smem, sub, q_tile); issue_score(dp, v_smem, sub, do_tile);
    wgmma_wait<1>(); touch(s);
    make_p(pt, tile, sub, lse_smem + stage * STAT_BYTES); touch(pt);
    wgmma_wait<0>(); touch(dp);
    wgmma_fence(); issue_accumulate(dv, pt, do_tile);
    make_ds(ds, pt, sub, delta_smem + stage * STAT_BYTES, ds_tile); touch(ds);
    wgmma_fence(); issue_accumulate(dk, ds, q_tile);
    wgmma_wait<0>(); touch(dv); touch(dk);
  };
#pragma unroll 1
  for (const int end = p.causal ? min(first + 3, tiles) : first; tile < end; ++tile) {
    mbar_wait(q_full + 8 * stage_of(tile), parity_of(tile)); mbar_wait(do_full + 8 * stage_of(tile), parity_of(tile));
    mbar_wait(ds_full + 8 * before(), ds_parity);
    sub_block(sub_a, dk_a, dv_a, p_a, ds_a);
    sub_block(sub_b, dk_b, dv_b, p_b, ds_b);
    proxy_fence(); __syncwarp(); mbar_arrive_if(ds_full + 8 * buffer, lane0);
    load_ahead(tile); dq_before(tile); next_trip();
  }
#endif
  // FIRST SCORES of the tiles that see all sub-blocks
  if (tile < tiles) {
    mbar_wait(q_full + 8 * stage_of(tile), parity_of(tile));
    wgmma_fence(); issue_score(s, k_smem, sub_a, q_smem + stage_of(tile) * TILE_BYTES); wgmma_wait<0>(); touch(s);
    make_p(p_a, tile, sub_a, lse_smem + stage_of(tile) * STAT_BYTES);
  }
  touch(p_a);
#pragma unroll 1
  for (; tile < tiles; ++tile) {
    const int more = tile + 1 < tiles;
    const int stage = stage_of(tile);
    const uint32_t q_tile = q_smem + stage * TILE_BYTES, do_tile = do_smem + stage * TILE_BYTES, ds_tile = ds_smem + buffer * DS_BYTES;
    const uint32_t lse = lse_smem + stage * STAT_BYTES, delta = delta_smem + stage * STAT_BYTES;
    // 1: dP_a, S_b, dV_a; dS_a under the last two
    mbar_wait(do_full + 8 * stage_of(tile), parity_of(tile));
    wgmma_fence(); issue_score(dp, v_smem, sub_a, do_tile); issue_score(s, k_smem, sub_b, q_tile); issue_accumulate(dv_a, p_a, do_tile);
    wgmma_wait<2>(); touch(dp);
    mbar_wait(ds_full + 8 * before(), ds_parity);                  // everybody made dS of the tile before: nobody is two trips behind
    make_ds(ds_a, p_a, sub_a, delta, ds_tile); touch(ds_a);
    wgmma_wait<0>(); touch(s); touch(dv_a);
    // 2: dP_b, dK_a; P_b under them
    wgmma_fence(); issue_score(dp, v_smem, sub_b, do_tile); issue_accumulate(dk_a, ds_a, q_tile);
    make_p(p_b, tile, sub_b, lse); touch(p_b);
    if (more) mbar_wait(q_full + 8 * stage_of(tile + 1), parity_of(tile + 1));
    wgmma_wait<0>(); touch(dp); touch(dk_a);
    // 3: S_a of the next tile (after the last tile of whatever lies there, never looked at), dV_b; dS_b under them
    wgmma_fence(); issue_score(s, k_smem, sub_a, q_smem + stage_of(tile + 1) * TILE_BYTES); issue_accumulate(dv_b, p_b, do_tile);
    make_ds(ds_b, p_b, sub_b, delta, ds_tile); touch(ds_b);
    proxy_fence(); __syncwarp(); mbar_arrive_if(ds_full + 8 * buffer, lane0);
    wgmma_wait<0>(); touch(s); touch(dv_b);
    // 4: dK_b; P_a of the next tile under it; then dQ of the tile before
    wgmma_fence(); issue_accumulate(dk_b, ds_b, q_tile);
    load_ahead(tile);
    if (more) make_p(p_a, tile + 1, sub_a, lse_smem + stage_of(tile + 1) * STAT_BYTES);
    wgmma_wait<0>(); touch(dk_b);
    dq_before(tile);
    wgmma_wait<0>(); touch(dk_b); touch(p_a);
    next_trip();
  }
  mbar_wait(ds_full + 8 * before(), ds_parity);
  if (DQ_EACH || (tiles & 1) == w) dq_step(ds_smem + before() * DS_BYTES);

  // STORE
#pragma unroll
  for (int b = 0; b < 2; b++) {
    const int row = kv0 + 64 * (b ? sub_b : sub_a) + warp * 16 + (lane >> 2);
    const uint64_t out = ((uint64_t)head * seqlen + row) * D;
    store_rows(p.dv + out, D, b ? dv_b : dv_a, 1.f, row, seqlen, lane); store_rows(p.dk + out, D, b ? dk_b : dk_a, p.passes.scale, row, seqlen, lane);
  }
  __syncthreads();
  if (threadIdx.x == 0) counter_add(p.passes.done + 2 * item.section + 1);
}
