"use strict";
// Numbers and times as the status page shows them, with the units of `headworks top`: sizes are in MiB, times in ms.

const format = {
  // A number of at most six characters.
  short(value) {
    if (!(value > 0)) return "0";
    if (value < 9.995) return value.toFixed(2);
    if (value < 99.95) return value.toFixed(1);
    if (value < 99999.5) return value.toFixed(0);
    if (value < 9.995e6) return (value / 1e3).toFixed(0) + "k";
    return (value / 1e6).toFixed(1) + "M";
  },

  // A number beside an axis.
  axis(value) {
    const [unit, mark] = value >= 1e6 ? [1e6, "M"] : value >= 1e4 ? [1e3, "k"] : [1, ""];
    return String(+(value / unit).toPrecision(3)) + mark;
  },

  // A count in full, in groups of three.
  count(value) {
    return Math.round(value).toString().replace(/\B(?=(\d{3})+$)/g, ",");
  },

  // Nanoseconds in ms.
  ms(ns) {
    return format.short(ns / 1e6);
  },

  // The latency of `count` requests in ms; those that were answered in the turn in which they came have 0.
  latency(ns, count) {
    if (count === 0) return "-";
    if (ns === 0) return "<turn";
    return ns < 5000 ? "<0.01" : format.ms(ns);
  },

  // Bytes with a fitting unit of 1024.
  size(bytes) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let unit = 0;
    while (bytes >= 1024 && unit < units.length - 1) {
      bytes /= 1024;
      unit += 1;
    }
    return (unit === 0 || bytes >= 99.95 ? bytes.toFixed(0) : bytes.toFixed(1).replace(/\.0$/, "")) + " " + units[unit];
  },

  // Seconds with the largest unit that is worth it.
  time(seconds) {
    if (seconds < 120) return seconds.toFixed(0) + " s";
    if (seconds < 7200) return (seconds / 60).toFixed(0) + " min";
    if (seconds < 172800) return (seconds / 3600).toFixed(0) + " h";
    return (seconds / 86400).toFixed(0) + " days";
  },

  // The time of day of seconds since the epoch.
  clock(seconds) {
    const two = (value) => String(value).padStart(2, "0");
    const date = new Date(seconds * 1000);
    return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  },
};
