// Rates from counts and times. A rate that is not known is `null`, never negative or NaN.

/**
 * The shortest time in seconds over which a rate is computed. An answer in one piece has no rate.
 */
const SHORTEST = 0.05;

/** Returns `count` per second, or `null` if one of the values is not known or too small. */
export function perSecond(count, seconds) {
  if (!Number.isFinite(count) || !Number.isFinite(seconds)) return null;
  return count > 0 && seconds > SHORTEST ? count / seconds : null;
}

/**
 * Returns the growth of a counter. A counter that has decreased belongs to a server that was
 * restarted.
 */
export function growth(now, before) {
  const grown = now - before;
  return Number.isFinite(grown) && grown > 0 ? grown : 0;
}
