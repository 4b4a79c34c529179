// Up to a million points on a canvas, written pixel by pixel; what is near a place, and what is inside a line.

const CELLS = 512; // a side of the index of places
const UNIT = 65535;
const FILLED = 0.94; // of the room, by all points
const MOVE_MS = 700;
const MOST_MOVED = 200_000; // points that move from one layout to the next; more jump

export class Plot {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.places = new Uint16Array(0); // x and y of each point
    this.colours = new Uint8Array(0); // of each point: a place in the palette; 0 lies below all others
    this.palette = new Uint32Array([0xff888888]);
    this.rings = []; // {rows, colour, width, radius}, drawn last
    this.line = null; // a lasso in pixels of the page
    this.isLarge = false; // whether points with a colour are larger
    this.fit();
  }

  get count() {
    return this.places.length / 2;
  }

  // Show all points, as large as there is room.
  fit() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const [least, most] = [[UNIT, UNIT], [0, 0]];
    for (let i = 0; i < this.places.length; i += 1) {
      const value = this.target[i];
      if (value < least[i & 1]) least[i & 1] = value;
      if (value > most[i & 1]) most[i & 1] = value;
    }
    const [x, y] = [0, 1].map((axis) => (this.count ? (least[axis] + most[axis]) / 2 / UNIT : 0.5));
    const [wide, high] = [0, 1].map((axis) => Math.max(0.05, (most[axis] - least[axis]) / UNIT));
    const zoom = (FILLED * Math.min(width / wide, height / high)) / Math.min(width, height);
    this.view = { x, y, zoom: this.count && width && height ? zoom : 1 };
    this.isFitted = true;
    this.fitted = this.view.zoom;
  }

  // Take new places; the points move there if they are few enough.
  setPlaces(places, isMoving) {
    const before = this.places;
    this.target = places;
    this.index = null;
    if (!isMoving || before.length !== places.length || this.count > MOST_MOVED) {
      this.places = places;
      if (this.isFitted) this.fit();
      return;
    }
    const from = performance.now();
    const step = () => {
      const share = Math.min(1, (performance.now() - from) / MOVE_MS);
      const eased = share * share * (3 - 2 * share);
      if (this.target !== places) return;
      this.places = share === 1 ? places : Uint16Array.from(places, (value, i) => before[i] + eased * (value - before[i]));
      this.draw();
      if (share < 1) requestAnimationFrame(step);
    };
    if (this.isFitted) this.fit();
    requestAnimationFrame(step);
  }

  // The scale from places to pixels of the page, and where the middle is.
  get frame() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const side = Math.min(width, height) * this.view.zoom;
    return { width, height, scale: side / UNIT, left: width / 2 - this.view.x * side, top: height / 2 - this.view.y * side, side };
  }

  at(row) {
    const { scale, left, top } = this.frame;
    return [left + this.places[2 * row] * scale, top + this.places[2 * row + 1] * scale];
  }

  zoomBy(factor, x = this.canvas.clientWidth / 2, y = this.canvas.clientHeight / 2) {
    const before = this.frame;
    this.isFitted = false;
    this.view.zoom = Math.min(200, Math.max(0.5, this.view.zoom * factor));
    const after = this.frame;
    const offset = 1 / before.side - 1 / after.side;
    this.view.x += (x - before.width / 2) * offset;
    this.view.y += (y - before.height / 2) * offset;
    this.draw();
  }

  pan(x, y) {
    this.isFitted = false;
    this.view.x -= x / this.frame.side;
    this.view.y -= y / this.frame.side;
    this.draw();
  }

  // Move the middle so that a point can be seen.
  reveal(row) {
    const [x, y] = this.at(row);
    const { width, height, side } = this.frame;
    if (x < 0 || x > width) this.view.x += (x - width / 2) / side;
    if (y < 0 || y > height) this.view.y += (y - height / 2) / side;
  }

  draw() {
    const { canvas, context } = this;
    const ratio = Math.min(2, devicePixelRatio);
    const width = Math.round(canvas.clientWidth * ratio);
    const height = Math.round(canvas.clientHeight * ratio);
    if (!width || !height) return;
    if (canvas.width !== width || canvas.height !== height) {
      Object.assign(canvas, { width, height });
      if (this.isFitted) this.fit();
    }
    const image = context.createImageData(width, height);
    const pixels = new Uint32Array(image.data.buffer);
    const small = (this.count > 100_000 ? 1 : this.count > 10_000 ? 2 : this.count > 2_000 ? 3.5 : 5) * ratio * Math.min(2, Math.max(1, Math.sqrt(this.view.zoom / this.fitted)));
    const large = this.isLarge ? Math.max(1.4 * small, 5 * ratio) : small;
    this.stamp(pixels, width, height, ratio, small, (colour) => colour === 0);
    this.stamp(pixels, width, height, ratio, large, (colour) => colour > 0);
    context.putImageData(image, 0, 0);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    for (const ring of this.rings) this.drawRing(ring);
    if (this.line?.length > 1) this.drawLine();
    context.setTransform(1, 0, 0, 1, 0, 0);
  }

  stamp(pixels, width, height, ratio, size, isWanted) {
    const { scale, left, top } = this.frame;
    const { places, colours, palette } = this;
    const dots = disc(size);
    const [by, x0, y0] = [scale * ratio, left * ratio, top * ratio];
    const wanted = Array.from(palette, (_, colour) => isWanted(colour));
    for (let i = 0, row = 0; i < places.length; i += 2, row += 1) {
      const colour = colours[row];
      if (!wanted[colour]) continue;
      const x = (x0 + places[i] * by) | 0;
      const y = (y0 + places[i + 1] * by) | 0;
      if (x < 0 || y < 0 || x >= width || y >= height) continue;
      const shade = palette[colour];
      for (let d = 0; d < dots.length; d += 2) {
        const px = x + dots[d];
        const py = y + dots[d + 1];
        if (px >= 0 && py >= 0 && px < width && py < height) pixels[py * width + px] = shade;
      }
    }
  }

  drawRing({ rows, colour, width, radius }) {
    const { context } = this;
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.beginPath();
    for (const row of rows) {
      const [x, y] = this.at(row);
      context.moveTo(x + radius, y);
      context.arc(x, y, radius, 0, 2 * Math.PI);
    }
    context.stroke();
  }

  drawLine() {
    const { context } = this;
    context.strokeStyle = this.lineColour;
    context.lineWidth = 2;
    context.setLineDash([6, 4]);
    context.beginPath();
    this.line.forEach(([x, y], place) => (place ? context.lineTo(x, y) : context.moveTo(x, y)));
    context.closePath();
    context.stroke();
    context.setLineDash([]);
  }

  // Rows by their places, in cells: those of cell c are order[starts[c]] up to order[starts[c + 1]].
  cells() {
    if (this.index) return this.index;
    const starts = new Uint32Array(CELLS * CELLS + 1);
    const cell = (row) => (((this.target[2 * row + 1] * CELLS) >> 16) * CELLS + ((this.target[2 * row] * CELLS) >> 16));
    for (let row = 0; row < this.count; row += 1) starts[cell(row) + 1] += 1;
    for (let c = 0; c < CELLS * CELLS; c += 1) starts[c + 1] += starts[c];
    const order = new Uint32Array(this.count);
    const next = starts.slice();
    for (let row = 0; row < this.count; row += 1) order[next[cell(row)]++] = row;
    this.index = { starts, order };
    return this.index;
  }

  // Call `see` with each row whose cell touches a box in pixels of the page.
  within(x0, y0, x1, y1, see) {
    const { starts, order } = this.cells();
    const { scale, left, top } = this.frame;
    const clamp = (value) => Math.min(CELLS - 1, Math.max(0, Math.floor((value / scale) * (CELLS / 65536))));
    for (let y = clamp(y0 - top); y <= clamp(y1 - top); y += 1) {
      const from = starts[y * CELLS + clamp(x0 - left)];
      const to = starts[y * CELLS + clamp(x1 - left) + 1];
      for (let i = from; i < to; i += 1) see(order[i]);
    }
  }

  // The row nearest to a place, at most `reach` pixels away; -1 if there is none. Points with a colour come first.
  nearest(x, y, reach = 14) {
    let best = -1;
    let least = reach;
    this.within(x - reach, y - reach, x + reach, y + reach, (row) => {
      const [px, py] = this.at(row);
      const apart = Math.hypot(px - x, py - y) * (this.isLarge && this.colours[row] ? 0.7 : 1);
      if (apart < least) [best, least] = [row, apart];
    });
    return best;
  }

  // The nearest row in a direction, at least a few pixels on.
  beside(row, dx, dy) {
    const [x, y] = this.at(row);
    let best = row;
    let least = Infinity;
    for (let other = 0; other < this.count; other += 1) {
      const [px, py] = this.at(other);
      const along = (px - x) * dx + (py - y) * dy;
      const across = Math.abs((px - x) * dy - (py - y) * dx);
      if (along < 4 || across > along || along + 2 * across >= least) continue;
      [best, least] = [other, along + 2 * across];
    }
    return best;
  }

  // Rows inside a closed line, or inside what can be seen.
  inside(line) {
    const xs = line.map(([x]) => x);
    const ys = line.map(([, y]) => y);
    const found = [];
    this.within(Math.min(...xs), Math.min(...ys), Math.max(...xs), Math.max(...ys), (row) => {
      if (isInside(this.at(row), line)) found.push(row);
    });
    return found;
  }

  get inView() {
    const { width, height } = this.frame;
    return this.inside([[0, 0], [width, 0], [width, height], [0, height]]);
  }
}

function isInside([x, y], line) {
  let isIn = false;
  for (let i = 0, j = line.length - 1; i < line.length; j = i, i += 1) {
    const [xi, yi] = line[i];
    const [xj, yj] = line[j];
    if (yi > y !== yj > y && x < ((xj - xi) * (y - yi)) / (yj - yi) + xi) isIn = !isIn;
  }
  return isIn;
}

// Offsets of the pixels of a disc.
function disc(size) {
  const radius = size / 2;
  const reach = Math.floor(radius);
  const found = [];
  for (let y = -reach; y <= reach; y += 1) for (let x = -reach; x <= reach; x += 1) if (Math.hypot(x, y) <= radius) found.push(x, y);
  return found.length ? found : [0, 0];
}
